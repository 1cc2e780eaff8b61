from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from turntree.agents.engines.drafting.chain_rows import StepResult
from turntree.agents.engines.served.chain_budget import ChainBudget
from turntree.agents.engines.vllm.settings import DrafterSettings


def verified(rows: int, depth: int, hits: NDArray[np.int64], *, whole: bool = True) -> StepResult:
    return StepResult(
        rows=rows,
        live=rows,
        tokens=rows + int(hits.sum()),
        turn_drafted=0,
        ended=np.zeros(0, np.int32),
        estimates=np.tile(0.9 ** np.arange(1, depth + 1), rows).astype(np.float32),
        accepted=(np.arange(depth) < hits[:, None]).ravel(),
        whole=whole,
    )


def run(budget: ChainBudget, *, rows: int, hits: float, cost: Any, steps: int = 300, read: int | None = 0) -> list[int]:
    clock, allowed = 0.0, []
    rng = np.random.default_rng(0)
    for _ in range(steps):
        nodes = budget.allow(rows).nodes
        allowed.append(nodes)
        depth = min(4, -(-nodes // rows))
        clock += cost(rows * (1 + depth))
        budget.learn(verified(rows, depth, rng.binomial(depth, hits, rows)), clock, read=read)
    return allowed


def test_drafts_are_allowed_as_they_come_true_and_steps_that_read_prompts_teach_nothing() -> None:
    allowed = run(ChainBudget(DrafterSettings(), 4, 4096), rows=4, hits=0.95, cost=lambda tokens: 0.01)
    assert np.mean(np.array(allowed[100:]) >= 12) > 0.9
    allowed = run(ChainBudget(DrafterSettings(), 4, 4096), rows=16, hits=0.0, cost=lambda tokens: 0.001 * tokens)
    assert np.mean(np.array(allowed[100:]) == 0) > 0.9
    allowed = run(ChainBudget(DrafterSettings(), 4, 4096), rows=4, hits=0.95, cost=lambda tokens: 0.01, read=1000)
    assert max(allowed) <= 2


def test_without_adapting_the_settings_alone_count() -> None:
    budget = ChainBudget(DrafterSettings(adaptive=False, max_step_tokens=5, min_probability=0.25), 4, 4096)
    assert tuple(budget.allow(8)) == (0.25, 5)
    assert budget.allow(1).nodes == 4


@pytest.mark.parametrize(("rows", "nodes"), [(60, 4), (64, 0), (70, 0)])
def test_drafts_leave_room_for_all_requests_in_a_step_of_the_engine(rows: int, nodes: int) -> None:
    assert ChainBudget(DrafterSettings(adaptive=False), 4, 64).allow(rows).nodes == nodes


@pytest.mark.parametrize(
    ("given", "rows", "device", "allowed"),
    [
        (None, 256, "cuda", 2048 - 256),
        (None, 256, "cpu", 2048),
        (None, 16, "cuda", 128),
        (None, 4096, "cuda", 0),
        (2000, 256, "cuda", 2000),
        (100, 256, "cpu", 100),
    ],
)
def test_a_step_on_an_accelerator_verifies_2048_tokens_at_most_unless_told_otherwise(given, rows, device, allowed):
    settings = DrafterSettings(adaptive=False, max_step_tokens=given)
    budget = ChainBudget(settings, 8, 8192, device=device)
    assert budget.most(rows) == budget.allow(rows).nodes == allowed
    assert budget.allow(rows, turn_drafted=100).nodes == max(0, allowed - 100)


def test_float32_logits_of_a_bounded_step_stay_below_a_gigabyte_and_a_quarter() -> None:
    vocabulary, rows = 151_936, 256
    tokens = {
        device: rows + ChainBudget(DrafterSettings(), 8, 8192, device=device).most(rows) for device in ("cuda", "cpu")
    }
    assert {device: 4 * vocabulary * count for device, count in tokens.items()} == {
        "cuda": 4 * vocabulary * 2048,  # 1.24 GB
        "cpu": 4 * vocabulary * 2304,  # control: without the bound
    }
    assert 4 * vocabulary * tokens["cuda"] < 1.25e9 < 4 * vocabulary * tokens["cpu"]
