"""A turn that is watched: each token is shown once, in order, and the watcher may end it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from cores import CONFIG

from turntree.agents.engines.local import LocalEngine, Speculation
from turntree.agents.engines.protocol import FinishReason, Foresee, Sampling, TurnRequest

PROMPT = (3, 1, 4, 1, 5)
SAMPLING = Sampling(max_tokens=24, seed=7)


def sampled(engine: LocalEngine, request: TurnRequest):
    return asyncio.run(engine.generate(request))


async def side_by_side(engine: LocalEngine, requests: Sequence[TurnRequest]) -> None:
    await asyncio.gather(*map(engine.generate, requests))


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


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_turn_that_was_sampled_before_is_foreseen_and_is_what_it_is_without(model, adaptive):
    """Also where the budget drafts nothing; without a store, or above its certainty, nothing is told."""
    with LocalEngine(model, config=replace(CONFIG, speculation=None)) as engine:
        (*begin, end) = sampled(engine, TurnRequest(PROMPT, replace(SAMPLING, max_tokens=12))).token_ids
        end = next(token for token in begin[4:] if token not in begin[:4])
    sampling = replace(SAMPLING, max_tokens=60, stop_token_ids=(end,))
    turns: dict[float | None, list[tuple[int, ...]]] = {}
    told: dict[float | None, list[tuple[int, ...]]] = {}
    beside: dict[float, list[tuple[int, ...]]] = {0.5: [], 1.0: []}
    for least in (None, 0.5, 1.0):
        told[least] = []
        wish = None if least is None else Foresee(min_probability=least, tell=told[least].append)
        with LocalEngine(model, config=replace(CONFIG, speculation=Speculation(adaptive=adaptive))) as engine:
            rows = [sampled(engine, TurnRequest(PROMPT, sampling, foresee=wish)) for _ in range(12)]
            turns[least] = [(row.token_ids, row.draft.verify_steps * (not adaptive)) for row in rows]
            if least == 0.5:
                wishes = [Foresee(min_probability=other, tell=heard.append) for other, heard in beside.items()]
                requests = [TurnRequest(PROMPT, sampling, foresee=wish) for wish in wishes]
                asyncio.run(side_by_side(engine, requests))
    assert turns[0.5] == turns[1.0] == turns[None]
    whole = turns[None][0][0]
    assert whole[-1] == end
    assert told[0.5][-1] == whole
    assert all(tokens[-1] == end for tokens in told[0.5])
    assert told[1.0] == []
    assert (len(beside[0.5]), beside[1.0]) == (1, []), "two turns of the same steps, each with its own bound"


def test_who_cannot_be_told_loses_nothing(engine):
    def tell(tokens: tuple[int, ...]) -> None:
        raise OSError("gone")

    wish = Foresee(min_probability=0.01, tell=tell)
    plain = sampled(engine, TurnRequest(PROMPT, SAMPLING))
    sampling = replace(SAMPLING, stop_token_ids=(plain.token_ids[-1],))
    rows = [sampled(engine, TurnRequest(PROMPT, sampling, foresee=wish)).token_ids for _ in range(4)]
    assert len(set(rows)) == 1
