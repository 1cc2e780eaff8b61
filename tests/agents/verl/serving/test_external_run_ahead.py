import asyncio
import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.agents.verl.serving.external_server import ExternalServer
from turntree.agents.verl.serving.turns import NumberedRequest

RUN_AHEAD = {"turntree": {"run_ahead": {"enabled": True}}}


class Held:
    # Precomputed turns run until they are aborted, with two tokens; all other turns end at once.

    vocabulary, max_context, version = 16, 64, 0

    def __init__(self) -> None:
        self.running: list[asyncio.Future[None]] = []
        self.drafts: list[tuple[int, ...]] = []

    async def generate(self, request: TurnRequest) -> Completion:
        self.drafts.append(tuple(request.draft))
        if request.precomputed_for:
            self.running.append(asyncio.Future())
            await self.running[-1]
        reason = FinishReason.ABORT if request.precomputed_for else FinishReason.STOP
        return Completion(token_ids=(5, 6), logprobs=(-1.0, -1.0), finish_reason=reason)

    async def abort_precomputed(self, most: int | None = None) -> None:
        for future in self.running[:most]:
            future.set_result(None)
        del self.running[:most]


class Verls:
    def __init__(self, engine: Held) -> None:
        self.config = SimpleNamespace(custom=RUN_AHEAD, max_num_seqs=8, seed=0, max_model_len=64, response_length=8)
        self.engine, self.replica_rank, self.global_steps = engine, 0, 0
        self.seen: list[int] = []

    async def note(self, *args: Any, **kwargs: Any) -> None:
        self.seen.append(len(self.engine.running))

    sleep = wait_for_requests_to_drain = release_kv_cache = abort_all_requests = set_global_steps = note


class Server(ExternalServer, Verls):  # type: ignore[misc]
    def engine_and_store(self) -> Any:
        return self.engine, None

    async def draft_counters(self) -> dict[str, float]:
        return {}


def turn(number: int, *, precomputed_for: int = 2) -> NumberedRequest:
    sampling = Sampling(seed=number, max_tokens=4)
    return NumberedRequest(number, TurnRequest((1, 2), sampling, precomputed_for=precomputed_for))


async def settled() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def serving(*numbers: int) -> Server:
    server = Server(Held())
    await server.serve_turns(shared=False)
    await server.begin_step(1)
    server.submit_turns_now = await server.submit_turns("me", [turn(number) for number in numbers])
    await settled()
    assert len(server.engine.running) == len(numbers)
    return server


CALLS = ["sleep", "wait_for_requests_to_drain", "release_kv_cache", "abort_all_requests"]


@pytest.mark.parametrize("call", CALLS)
async def test_precomputed_turns_have_ended_when_verl_wants_the_engine(call: str) -> None:
    server = await serving(7, 8)
    await getattr(server, call)()
    assert server.seen == [0]


@pytest.mark.parametrize("call", CALLS)
async def test_without_that_they_would_be_in_its_way(call: str) -> None:
    """Control: verl's own method."""
    server = await serving(7, 8)
    await getattr(Verls, call)(server)
    assert server.seen == [2]
    await server.sleep()


@pytest.mark.parametrize(
    "engine", [pytest.param(engine, marks=getattr(pytest.mark, engine)) for engine in ("vllm", "sglang")]
)
def test_each_is_called_again_where_the_server_died_meanwhile(engine: str) -> None:
    replica = importlib.import_module(f"turntree.agents.verl.serving.{engine}_replica")
    server = getattr(replica, f"Drafting{engine.capitalize()}Server")
    assert {getattr(server, call).__ray_max_task_retries__ for call in CALLS} == {-1}


async def test_nothing_is_precomputed_from_then_until_the_next_step_begins() -> None:
    server = await serving(7)
    await server.sleep()
    await server.submit_turns("me", [turn(9, precomputed_for=3)])
    await server.set_global_steps(1)
    await settled()
    assert (server.seen, server.engine.running) == ([0, 0], [])
    await server.begin_step(2)
    await settled()
    assert len(server.engine.running) == 1, "the turn of step 2 has had its time, that of step 3 goes on"
    await server.sleep()


async def test_what_an_ended_turn_has_is_the_draft_of_its_step_and_only_wanted_turns_are_counted() -> None:
    server = await serving(7)
    await server.sleep()
    await server.set_global_steps(1)
    await server.begin_step(2)
    life = await server.submit_turns("other", [turn(7, precomputed_for=0)])
    (reply,) = await server.collect_turns("other", life)
    assert reply.completion is not None
    assert reply.completion.levels == "BB"
    assert server.engine.drafts == [(), (5, 6)]
    counters = await server.step_counters()
    assert (counters["requests"], counters["run_ahead_turns"], counters["run_ahead_promoted"]) == (1, 1, 2)
