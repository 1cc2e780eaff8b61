from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, Scores, ScoringEngine
from turntree.agents.engines.routed import RoutedEngine
from turntree.agents.errors import EngineLost
from turntree.agents.routing import NoReplicas
from turntree.spec_tree import DialogueState


class Replica:
    """Remembers the tasks that it was asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tasks: list[str] = []
        self.scored = 0
        self.lost = False

    async def generate(self, prompt_ids: Any, sampling: Any, *, state: Any = None, draft: Any = ()) -> Completion:
        await asyncio.sleep(0)
        if self.lost:
            raise EngineLost(self.name)
        self.tasks.append(state.task if state else "")
        return Completion(token_ids=(1,), logprobs=(0.0,), finish_reason=FinishReason.STOP)

    async def score(self, prompt_ids: Any, token_ids: Any, sampling: Any, *, top: int = 0) -> Scores:
        if self.lost:
            raise EngineLost(self.name)
        self.scored += 1
        return Scores(logprobs=())


@pytest.fixture
def replicas() -> dict[str, Replica]:
    return {name: Replica(name) for name in ("a", "b", "c", "d")}


def turn(task: int, number: int) -> tuple[tuple[int, ...], DialogueState]:
    prompt = tuple(range(task, task + 3 + number))
    return prompt, DialogueState.from_tokens(prompt, task=str(task), env="sums", tools="x" * number)


async def play(engine: RoutedEngine, tasks: int, *, samples: int = 4, turns: int = 3) -> None:
    for number in range(turns):
        asked = [turn(task, number) for task in range(tasks) for _ in range(samples)]
        await asyncio.gather(*(engine.generate(prompt, Sampling(), state=state) for prompt, state in asked))


async def test_samples_of_a_task_and_turns_of_a_dialogue_meet_in_one_replica(replicas):
    engine = RoutedEngine(replicas)
    assert isinstance(engine, ScoringEngine)
    await play(engine, 32)
    for task in range(32):
        homes = [name for name, replica in replicas.items() if str(task) in replica.tasks]
        assert len(homes) == 1
        assert replicas[homes[0]].tasks.count(str(task)) == 12
        assert engine.replica_of(turn(task, 0)[1]) == homes[0]


async def test_tasks_are_spread_over_the_replicas(replicas):
    await play(RoutedEngine(replicas), 64, samples=1, turns=1)
    loads = Counter({name: len(replica.tasks) for name, replica in replicas.items()})
    assert max(loads.values()) <= 1.25 * 16 + 1


async def test_a_turn_is_scored_where_it_was_sampled(replicas):
    engine = RoutedEngine(replicas)
    prompt, state = turn(5, 1)
    await engine.generate(prompt, Sampling(), state=state)
    await engine.score(prompt, (1,), Sampling())
    home = engine.replica_of(state)
    assert [name for name, replica in replicas.items() if replica.scored] == [home]


async def test_the_tasks_of_a_lost_replica_and_no_others_move(replicas):
    engine = RoutedEngine(replicas)
    await play(engine, 32, turns=1)
    before = {task: engine.replica_of(turn(task, 0)[1]) for task in range(32)}
    replicas["b"].lost = True
    await play(engine, 32, turns=1)
    for task, home in before.items():
        now = engine.replica_of(turn(task, 0)[1])
        assert (now != "b") if home == "b" else (now == home)
    for replica in replicas.values():
        replica.lost = True
    with pytest.raises(NoReplicas):
        await play(engine, 1)


async def test_what_is_remembered_is_bounded(replicas):
    engine = RoutedEngine(replicas, tasks=8)
    await play(engine, 40, samples=1, turns=1)
    assert sum(engine.replica_of(turn(task, 0)[1]) is not None for task in range(40)) == 8
