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
