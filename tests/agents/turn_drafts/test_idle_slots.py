import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from run_ahead_turns import RunAheadTurns

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, Scores, TurnRequest
from turntree.agents.engines.served.turns import PrecomputedRequests, ServedTurns
from turntree.agents.engines.vllm.dialect import VllmDialect
from turntree.agents.turn_drafts.idle_slots import IdleSlots
from turntree.agents.turn_drafts.pipeline import DraftedTurns


class HeldEngine:
    """Runs requests until they are released; an aborted one has one token. The first ``deaf`` aborts reach none."""

    def __init__(self, deaf: int = 0) -> None:
        self.running: dict[str, list[asyncio.Future[FinishReason]]] = {"ahead": [], "wanted": []}
        self.deaf = deaf

    async def generate(self, request: TurnRequest) -> Completion:
        running, future = self.running["ahead" if request.precomputed_for else "wanted"], asyncio.Future[FinishReason]()
        running.append(future)
        try:
            reason = await future
        finally:
            running.remove(future)
        return Completion(token_ids=(1,), logprobs=(0.0,), finish_reason=reason)

    async def score(self, *args: Any, **kwargs: Any) -> Scores:
        await self.generate(TurnRequest((1,), Sampling()))
        return Scores(logprobs=())

    async def abort_precomputed(self, most: int | None = None) -> None:
        self.deaf -= 1
        if self.deaf < 0:
            self.end("ahead", most, FinishReason.ABORT)

    def end(self, kind: str, most: int | None = None, reason: FinishReason = FinishReason.LENGTH) -> None:
        for future in [one for one in reversed(self.running[kind]) if not one.done()][:most]:
            future.set_result(reason)

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.running["ahead"]), len(self.running["wanted"])


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.001)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def admitted(engine: HeldEngine, slots: IdleSlots, request: TurnRequest) -> Completion:
    if not request.precomputed_for:
        async with slots.needed():
            return await engine.generate(request)
    async with slots.idle() as found:
        return (
            await engine.generate(request)
            if found
            else Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT)
        )


def ask(engine: HeldEngine, slots: IdleSlots, *, ahead: int = 0, wanted: int = 0) -> list[asyncio.Task[Completion]]:
    requests = [TurnRequest((1,), Sampling(seed=n), precomputed_for=2) for n in range(ahead)]
    requests += [TurnRequest((1,), Sampling(seed=n)) for n in range(wanted)]
    return [asyncio.create_task(admitted(engine, slots, request)) for request in requests]


@pytest.mark.parametrize(
    ("batch", "slots", "wanted", "ahead"), [(8, 3, 0, 3), (8, 8, 0, 8), (8, 3, 6, 2), (8, 3, 8, 0), (8, 3, 20, 0)]
)
async def test_precomputed_turns_run_in_idle_slots_within_their_budget(batch, slots, wanted, ahead):
    engine = HeldEngine()
    idle = IdleSlots(engine, batch=batch, slots=slots)
    tasks = ask(engine, idle, wanted=wanted)
    await settled()
    tasks += ask(engine, idle, ahead=10)
    await settled()
    assert engine.counts == (ahead, wanted)
    engine.end("wanted")
    await settled()
    assert engine.counts == (min(slots, 10), 0), "an idle slot is used at once"
    while not all(task.done() for task in tasks):
        assert engine.counts[0] <= slots
        engine.end("ahead")
        await settled()


@pytest.mark.parametrize("deaf", [0, 3])
async def test_a_requested_turn_is_asked_at_once_and_what_is_over_is_ended(deaf: int) -> None:
    engine = HeldEngine(deaf)
    idle = IdleSlots(engine, batch=4, slots=3)
    tasks = ask(engine, idle, ahead=3)
    await settled()
    tasks += ask(engine, idle, wanted=3)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert engine.counts[1] == 3
    await until(lambda: engine.counts == (1, 3))
    assert [task.done() and task.result().finish_reason for task in tasks[:3]] == [False, "abort", "abort"]
    scoring = asyncio.create_task(DraftedTurns(engine, slots=idle).score((1,), (2,), Sampling()))
    await until(lambda: engine.counts == (0, 4))
    engine.end("wanted")
    await asyncio.gather(*tasks, scoring)


@pytest.mark.parametrize("deaf", [0, 3])
async def test_all_precomputed_turns_can_be_ended_those_that_wait_too(deaf: int) -> None:
    engine = HeldEngine(deaf)
    idle = IdleSlots(engine, batch=4, slots=2)
    tasks = ask(engine, idle, ahead=5)
    await settled()
    await idle.abort_precomputed()
    assert engine.counts == (0, 0)
    turns = await asyncio.gather(*tasks)
    assert [turn.finish_reason for turn in turns] == ["abort"] * 5
    assert sorted(len(turn.token_ids) for turn in turns) == [0, 0, 0, 1, 1], "what has begun keeps its tokens"


async def test_a_pause_ends_what_runs_and_nothing_begins_until_it_is_over() -> None:
    engine = HeldEngine()
    run_ahead = RunAheadTurns(engine, slots=IdleSlots(engine, batch=4, slots=2))
    tasks = [
        asyncio.create_task(run_ahead.precompute(TurnRequest((1,), Sampling(seed=n), precomputed_for=2)))
        for n in range(3)
    ]
    await settled()
    assert engine.counts[0] == 2
    await run_ahead.pause()
    await settled()
    assert engine.counts[0] == 0
    assert not run_ahead.active
    run_ahead.resume()
    await settled()
    assert engine.counts[0] == 2
    await run_ahead.begin_step(2)
    assert [turn.finish_reason for turn in await asyncio.gather(*tasks)] == ["abort"] * 3


class Without(ServedTurns):
    async def _ask(self, *args: Any) -> Any:
        raise AssertionError("nothing is asked")


async def test_an_engine_without_priorities_refuses_to_precompute_and_names_what_it_lacks() -> None:
    engine = Without(VllmDialect(speculates=False), max_context=64, vocabulary=8)
    with pytest.raises(ValueError, match=r"for step 2 .* start the engine with scheduling_policy=priority"):
        await engine.generate(TurnRequest((1,), Sampling(), precomputed_for=2))


class Noting(PrecomputedRequests):
    def __init__(self) -> None:
        super().__init__(priorities=True, setting="")
        self.aborted: list[list[str]] = []

    async def _abort(self, names: Any) -> None:
        self.aborted.append(list(names))


async def test_the_newest_precomputed_requests_are_ended_first_and_no_others() -> None:
    engine = Noting()
    await engine.abort_precomputed()
    with engine._noted("a", ahead=True), engine._noted("b", ahead=False), engine._noted("c", ahead=True):
        await engine.abort_precomputed(1)
        await engine.abort_precomputed()
    await engine.abort_precomputed()
    assert engine.aborted == [["c"], ["c", "a"]]
