from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_checks import LAWS, PROMPT, OwnEngineChecks, state
from policy_law import PolicyLaw
from run_ahead_checks import RunAheadChecks
from tiny_vllm import drafting_engine

from turntree.agents.engines.protocol import Sampling, TurnRequest
from turntree.agents.engines.request_wire import to_wire
from turntree.agents.engines.served.dialect import UnsupportedSampling
from turntree.agents.engines.vllm.engine import VllmEngine
from turntree.agents.engines.vllm.worker import ask_workers

pytestmark = pytest.mark.vllm

BLOCK = 32


@pytest.fixture(scope="module")
def folder(small_llama: Path) -> Path:
    return small_llama


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmEngine]:
    with drafting_engine(folder, max_batch=32, block_size=BLOCK) as started:
        yield started


class TestVllm(OwnEngineChecks):
    laws = (*LAWS, {"top_k": 3}, {"top_k": 6, "top_p": 0.9})

    def held(self, engine: VllmEngine) -> tuple[int, int]:
        figures = engine.figures()
        return int(figures["held_rollouts"]), int(figures["held_live"])

    async def test_the_store_takes_turns_from_outside_and_none_of_another_vocabulary(
        self, engine: VllmEngine, policy: PolicyLaw
    ) -> None:
        def insert(*turns: list[int]) -> None:
            call = ("turntree_store", ["insert", [to_wire(here)] * len(turns), turns])
            engine._thread.call(ask_workers(engine._llm, *call))  # as verl's server does

        prompt, here = [9, 8, 7, 6, 4], state("from outside")
        turn, before = policy.seeded(prompt, 24, 8), self.held(engine)[0]
        insert(turn)
        for beyond in (32, 2**31 - 1):  # the model knows 32 tokens
            with pytest.raises(Exception, match=f"expected tokens from 0 to 31, got {beyond}"):
                insert(turn, [*turn[:3], beyond])
        assert self.held(engine)[0] == before + 1
        found = await engine.generate(TurnRequest(prompt, Sampling(max_tokens=24, seed=8), state=here))
        assert list(found.token_ids) == turn
        assert found.draft.verify_steps < 12


async def test_scoring_reads_the_cache_as_far_as_nothing_is_asked_there(engine: VllmEngine, policy: PolicyLaw) -> None:
    tokens = tuple(1 + (7 * n + n // 9) % 30 for n in range(2 * BLOCK))
    first = await engine.score(PROMPT, tokens, Sampling())
    second = await engine.score((*PROMPT, *tokens), (1, 2), Sampling())
    assert second.cached_tokens >= BLOCK
    # All of the tokens are in the cache now, whose log-probabilities vLLM does not give.
    third = await engine.score(PROMPT, tokens, Sampling())
    for scores in (first, third):
        assert scores.logprobs == pytest.approx(policy.logprobs(PROMPT, tokens), abs=1e-4)


async def test_scores_are_of_the_law_after_temperature_and_cuts(engine: VllmEngine, policy: PolicyLaw) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.6, max_tokens=8, seed=5)
    turn = await engine.generate(TurnRequest(PROMPT, sampling))
    scores = await engine.score(PROMPT, turn.token_ids, sampling, top=3)
    assert scores.logprobs == pytest.approx(turn.behaviour_logprobs, abs=1e-4)
    assert scores.policy_logprobs == pytest.approx(policy.logprobs(PROMPT, turn.token_ids, 0.7), abs=1e-4)


async def test_what_vllm_cannot_do_is_refused(engine: VllmEngine) -> None:
    with pytest.raises(UnsupportedSampling, match="min_p"):
        await engine.generate(TurnRequest(PROMPT, Sampling(min_p=0.1)))
    with pytest.raises(ValueError, match="repetition_penalty=2"):
        await engine.score(PROMPT, (1,), Sampling(repetition_penalty=2.0))
    with pytest.raises(ValueError, match="the prompt is empty"):
        await engine.generate(TurnRequest((), Sampling()))


class TestRunAhead(RunAheadChecks):
    """Last, as the drafter learns here that siblings seldom say the same."""
