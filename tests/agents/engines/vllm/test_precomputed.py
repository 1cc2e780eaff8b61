import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_checks import PROMPT
from machine_speed import soon
from policy_law import PolicyLaw
from run_ahead_checks import LONG, all_of, asked
from tiny_vllm import drafting_engine

from turntree.agents.engines.vllm.dialect import VllmDialect
from turntree.agents.engines.vllm.engine import VllmEngine

pytestmark = [pytest.mark.vllm, pytest.mark.release]


@pytest.fixture(scope="module")
def folder(small_llama: Path) -> Path:
    return small_llama


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmEngine]:
    with drafting_engine(folder, max_batch=4, num_gpu_blocks_override=8) as started:
        yield started


@pytest.mark.parametrize("by_priority", [True, False])
async def test_a_precomputed_turn_loses_its_keys_and_values_to_a_requested_one_and_goes_on(
    engine: VllmEngine, policy: PolicyLaw, monkeypatch: pytest.MonkeyPatch, by_priority: bool
) -> None:
    """Control: without the priority, the first turn ends first."""
    if not by_priority:
        monkeypatch.setattr(VllmDialect, "precomputed", 0)
    ended: list[int] = []
    seeds = (11, 12, 13) if by_priority else (21, 22, 23)  # nothing is drafted from the other case
    ahead = [asyncio.create_task(engine.generate(asked(seed, LONG, step=2, name=f"{seed}"))) for seed in seeds[:2]]
    await soon(lambda: engine.live == 2, 120)
    wanted = asyncio.create_task(engine.generate(asked(seeds[2], LONG, name="wanted")))
    for seed, task in zip(seeds, (*ahead, wanted), strict=True):
        task.add_done_callback(lambda _, seed=seed: ended.append(seed))
    said = await all_of([*ahead, wanted])
    assert [list(turn.token_ids) for turn in said] == [policy.seeded(PROMPT, LONG, seed) for seed in seeds]
    assert (ended[0] == seeds[2]) is by_priority
