import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_runner import END, ScriptedRunner

from turntree.agents.engines.protocol import DraftStats
from turntree.agents.engines.vllm.worker import TurnCounters, WorkerExtension, ask_workers, summed

PROMPT, TURN = [5, 6, 7], [11, 12, 13, END]


class Workers:
    def __init__(self, *ranks: dict[str, tuple[int, int, int]]) -> None:
        self.ranks = ranks
        self.calls: list[list[str]] = []
        self.step = asyncio.Semaphore(0)

    async def ask(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        self.calls.append(*args)
        await self.step.acquire()
        if "broken" in self.calls[-1]:
            raise RuntimeError("the engine died")
        return list(self.ranks)


async def test_turns_that_end_during_a_step_are_asked_for_in_one_call() -> None:
    names = [f"r{i}" for i in range(6)]
    workers = Workers({}, {name: (i, 2, 1) for i, name in enumerate(names)})  # the first pipeline stage drafts nothing
    counters = TurnCounters(workers.ask)
    first = asyncio.create_task(counters.of(names[0]))
    await asyncio.sleep(0)
    others = [asyncio.create_task(counters.of(name)) for name in (*names[1:], "another's")]
    for _ in range(2):
        await asyncio.sleep(0)
        workers.step.release()
    told = await asyncio.gather(first, *others)
    assert workers.calls == [names[:1], [*names[1:], "another's"]]
    assert told[:-1] == [DraftStats(verify_steps=i, drafted=2, accepted=1) for i in range(6)]
    assert told[-1] == DraftStats()


async def test_a_call_that_fails_fails_its_turns_and_no_others() -> None:
    workers = Workers({"r": (1, 0, 0)})
    counters = TurnCounters(workers.ask)
    broken = asyncio.create_task(counters.of("broken"))
    await asyncio.sleep(0)
    gone, right = (asyncio.create_task(counters.of(name)) for name in ("gone", "r"))
    await asyncio.sleep(0)
    gone.cancel()
    for _ in range(2):
        workers.step.release()
    with pytest.raises(RuntimeError, match="the engine died"):
        await broken
    assert await right == DraftStats(verify_steps=1)


class Engines:
    """Like vLLM's client of several data-parallel engines, whose own call keeps only the first one's answers."""

    def __init__(self, *engines: list[Any]) -> None:
        self.answers = dict(enumerate(engines))
        self.core_engines = list(self.answers)
        self.engine_core = self

    async def _call_utility_async(self, call: str, *args: Any, engine: int) -> list[Any]:
        assert (call, args) == ("collective_rpc", ("turntree_drafter_stats", None, (), None))
        return self.answers[engine]

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[Any]:
        return self.answers[0]


async def test_the_drafters_of_all_data_parallel_engines_are_heard() -> None:
    engines = Engines([{}, {"steps": 3.0}], [{}, {"steps": 4.0, "rows": 1.0}])
    assert summed(await ask_workers(engines, "turntree_drafter_stats")) == {"steps": 7.0, "rows": 1.0}
    one = Engines([{}, {"steps": 3.0}])
    assert summed(await ask_workers(one, "turntree_drafter_stats")) == {"steps": 3.0}


def worker(drafter: Any) -> WorkerExtension:
    extension = WorkerExtension()
    extension.model_runner = SimpleNamespace(drafter=drafter)
    extension.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_index=0))
    return extension


def test_one_worker_drafts_and_the_others_neither_draft_nor_answer(tmp_path: Any) -> None:
    leading, following = ScriptedRunner(), ScriptedRunner()
    following.drafter.bind(following, leads=False)
    for runner in (leading, following):
        for name in "ab":
            runner.say(name, PROMPT, TURN)
    first, second = worker(leading.drafter), worker(following.drafter)
    assert leading.drafter.forest.stats().rollouts == 2
    assert following.drafter.forest.stats().rollouts == 0
    assert not any(draft for step in following.proposed for draft in step.values())
    assert first.turntree_draft_stats(["a", "b"])["b"] == (2, 3, 2)
    for rank in (second, worker(None)):
        assert (rank.turntree_draft_stats(["a"]), rank.turntree_drafter_stats()) == ({}, {})
        rank.turntree_store("save", str(tmp_path / "other"))
    first.turntree_store("save", str(tmp_path / "store"))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
