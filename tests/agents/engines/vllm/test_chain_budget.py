from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turntree.agents.engines.vllm.chain_budget import ChainBudget
from turntree.agents.engines.vllm.settings import DrafterSettings
from turntree.spec_tree import DraftBatch


def batch(rows: int, depth: int, probability: float) -> DraftBatch:
    count = rows * depth
    return DraftBatch(
        tokens=np.ones(count, np.int32),
        parents=np.tile(np.arange(-1, depth - 1), rows).astype(np.int32),
        depths=np.tile(np.arange(1, depth + 1), rows).astype(np.int32),
        probabilities=np.tile(probability ** np.arange(1, depth + 1), rows).astype(np.float32),
        offsets=np.arange(0, count + 1, depth, dtype=np.int64) if depth else np.zeros(rows + 1, np.int64),
    )


def run(budget: ChainBudget, *, rows: int, hits: float, cost: Any, steps: int = 300, read: int | None = 0) -> list[int]:
    """Nodes allowed in each step, where ``hits`` of four drafts come true and a step of n tokens lasts ``cost(n)``."""
    clock, allowed = 0.0, []
    rng = np.random.default_rng(0)
    for step in range(1, steps + 1):
        nodes = budget.allow(rows).nodes
        allowed.append(nodes)
        depth = min(4, -(-nodes // rows))
        live = [SimpleNamespace(step=step, by_guess=False, drafted=depth, hits=0) for _ in range(rows)]
        for row in live:
            row.hits = int(rng.binomial(depth, hits))
        budget.drafted(live, batch(rows, depth, 0.9) if depth else None)  # type: ignore[arg-type]
        clock += cost(rows * (1 + depth))
        budget.learn(step, clock, rows=rows, read=read)
    return allowed


def test_drafts_that_come_true_and_cost_nothing_are_allowed_in_full() -> None:
    allowed = run(ChainBudget(DrafterSettings(), 4, 4096), rows=4, hits=0.95, cost=lambda tokens: 0.01)
    assert np.mean(np.array(allowed[100:]) >= 12) > 0.9


def test_drafts_that_never_come_true_are_given_up() -> None:
    allowed = run(ChainBudget(DrafterSettings(), 4, 4096), rows=16, hits=0.0, cost=lambda tokens: 0.001 * tokens)
    assert np.mean(np.array(allowed[100:]) == 0) > 0.9


def test_steps_that_mostly_read_prompts_teach_nothing() -> None:
    allowed = run(ChainBudget(DrafterSettings(), 4, 4096), rows=4, hits=0.95, cost=lambda tokens: 0.01, read=1000)
    assert max(allowed) <= 2


def test_without_adapting_the_settings_alone_count() -> None:
    budget = ChainBudget(DrafterSettings(adaptive=False, max_step_tokens=5, min_probability=0.25), 4, 4096)
    assert tuple(budget.allow(8)) == (0.25, 5)
    assert budget.allow(1).nodes == 4


@pytest.mark.parametrize(("rows", "nodes"), [(60, 4), (64, 0), (70, 0)])
def test_drafts_leave_room_for_all_requests_in_a_step_of_the_engine(rows: int, nodes: int) -> None:
    assert ChainBudget(DrafterSettings(adaptive=False), 4, 64).allow(rows).nodes == nodes
