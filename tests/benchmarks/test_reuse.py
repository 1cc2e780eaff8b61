import numpy as np
import pytest
from benchmark_modules import benchmark_module

pytest.importorskip("torch")
pytest.importorskip("transformers")


def test_advantages_are_normalised_within_a_task_and_every_epoch_has_the_same_tasks() -> None:
    advantages = benchmark_module("trained.training").group_advantages([1.0, 0.0, 1.0, 1.0], 2)
    assert advantages[:2] == pytest.approx([1.0, -1.0], abs=1e-4)
    assert advantages[2:] == [0.0, 0.0]
    setting = benchmark_module("trained.training").Setting(
        env="e", env_kwargs={}, tasks=6, batch=2, samples=2, learning_rate=1.0
    )
    assert [setting.indices(step) for step in range(3)] == [[0, 1], [2, 3], [4, 5]]
    assert setting.indices(4) == setting.indices(1)


def test_few_recorded_tokens_cost_acceptance_and_the_rule_stays_exact() -> None:
    at = benchmark_module("reusing.acceptance").at
    p, q = np.random.default_rng(0).dirichlet(np.ones(8), (2, 50))
    kept, by_all, distance, naive = at(p, q, 1)
    assert kept < by_all
    assert distance < 1e-12
    assert naive > 1, "the control must see what the drawn token's own probability does"
    assert at(p, q, 8)[0] == pytest.approx(by_all)
