"""Two tensor-parallel processes on the CPU. Pipelines cannot run: the second stage of vLLM 0.28's CPU build fails at
its first pass, with or without drafts, because its model runner has no ``intermediate_tensors``.
"""

import asyncio
from pathlib import Path

import pytest
from engine_checks import CONTEXT
from tiny_llama import save_tiny_llama
from tiny_vllm import drafting_engine

from turntree.agents.engines.protocol import Completion, Sampling, TurnRequest
from turntree.agents.engines.vllm.engine import VllmEngine
from turntree.agents.engines.vllm.settings import DrafterSettings

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.release]

TURNS, LENGTH = 8, 24


async def play(engine: VllmEngine) -> list[Completion]:
    requests = [TurnRequest((3, 4, 5, turn % 2), Sampling(max_tokens=LENGTH, seed=turn)) for turn in range(TURNS)]
    return await asyncio.gather(*map(engine.generate, requests))


async def test_turns_with_drafts_of_one_rank_are_the_turns_without(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path / "model", positions=CONTEXT)
    silent = DrafterSettings(enabled=False).to_additional_config()
    with drafting_engine(folder, max_batch=TURNS, additional_config=silent, tensor_parallel_size=2) as plain:
        without = await play(plain)
    with drafting_engine(folder, max_batch=TURNS, tensor_parallel_size=2) as engine:
        first, second = await play(engine), await play(engine)
        figures = engine.figures()
    told = [turn.token_ids for turn in without]
    assert [turn.token_ids for turn in first] == [turn.token_ids for turn in second] == told
    assert all(turn.draft.verify_steps == LENGTH and turn.draft.drafted == 0 for turn in without)
    assert sum(turn.draft.accepted for turn in second) > TURNS * LENGTH / 2
    assert all(turn.draft.verify_steps + turn.draft.accepted >= LENGTH for turn in second)
    assert figures["held_rollouts"] == 2 * TURNS, "counted once, of the rank that drafts"
