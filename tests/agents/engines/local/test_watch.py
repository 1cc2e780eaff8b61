import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from cores import CONFIG

from turntree.agents.engines.local import LocalEngine, Speculation
from turntree.agents.engines.protocol import FinishReason, Sampling, TurnRequest

PROMPT = (3, 1, 4, 1, 5)
SAMPLING = Sampling(max_tokens=24, seed=7)


def sampled(engine: LocalEngine, request: TurnRequest):
    return asyncio.run(engine.generate(request))


@pytest.mark.parametrize("drafted", [True, False])
def test_the_tokens_shown_are_those_of_the_turn(model, drafted):
    speculation = Speculation(adaptive=False, min_probability=0.0) if drafted else None
    with LocalEngine(model, config=replace(CONFIG, speculation=speculation)) as engine:
        plain = sampled(engine, TurnRequest(PROMPT, SAMPLING))
        shown: list[Sequence[int]] = []
        request = TurnRequest(PROMPT, SAMPLING, watch=lambda tokens: shown.append(tokens) or False)
        watched = sampled(engine, replace(request, draft=plain.token_ids if drafted else ()))
    assert watched.token_ids == plain.token_ids
    assert [token for tokens in shown for token in tokens] == list(plain.token_ids)
    assert len(shown) == watched.draft.verify_steps
    assert (max(map(len, shown)) > 1) == drafted


def test_a_watcher_ends_the_turn_after_the_tokens_that_it_has_seen(engine):
    plain = sampled(engine, TurnRequest(PROMPT, SAMPLING))
    seen: list[int] = []

    def watch(tokens: Sequence[int]) -> bool:
        seen.extend(tokens)
        return len(seen) >= 5

    done = sampled(engine, TurnRequest(PROMPT, SAMPLING, watch=watch))
    assert done.finish_reason is FinishReason.STOP
    assert list(done.token_ids) == seen
    assert done.token_ids == plain.token_ids[: len(seen)]
    assert len(seen) < len(plain.token_ids)
    assert sampled(engine, TurnRequest(PROMPT, SAMPLING)).token_ids == plain.token_ids


async def test_a_watcher_that_raises_loses_its_own_turn_alone(engine):
    def watch(tokens: Sequence[int]) -> bool:
        raise OSError("nobody looks any more")

    broken, whole = await asyncio.gather(
        engine.generate(TurnRequest(PROMPT, SAMPLING, watch=watch)),
        engine.generate(TurnRequest(PROMPT, SAMPLING)),
        return_exceptions=True,
    )
    assert "nobody looks" in str(broken)
    assert len(whole.token_ids) == SAMPLING.max_tokens
