import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from threading import Barrier
from typing import Any
from unittest.mock import Mock

import meeting
import pytest
from adder import Adder, play
from recording_engine import RecordingEngine

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, Sampling, TurnRequest
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.evaluation.evaluate import Evaluation, evaluate, solved, wilson_interval
from turntree.agents.evaluation.table import EvalResult, figures, rows
from turntree.agents.loop.renderer import Renderer
from turntree.agents.scoring.scorer import Scorer
from turntree.envs.task import Task
from turntree.rewards import Sample, reward


def answer(renderer: Renderer, crash_on: int = -1) -> Any:
    def say(prompt: tuple[int, ...]) -> str:
        return "crash" if f"{crash_on}+1" in renderer.decode(prompt) else "5"

    return ScriptedEngine(say, renderer.tokenizer)


async def test_episodes_come_in_the_order_of_their_tasks_whatever_ends_first(renderer: Renderer) -> None:
    engine, ended = answer(renderer), []
    others = asyncio.Event()

    async def hasty(prompt: tuple[int, ...], sampling: Sampling) -> Completion:
        if "0+1" in renderer.decode(prompt):
            await others.wait()
        return await engine.generate(TurnRequest(prompt, sampling))

    def end(sampled: Any) -> None:
        ended.append(sampled.episode.task.id)
        if len(ended) == 2:
            others.set()

    episodes = await evaluate(Adder, RecordingEngine(hasty), renderer, [0, 4, 2], on_episode=end)
    assert [episode.task.id for episode in episodes] == ["adder/0", "adder/4", "adder/2"]
    assert ended == ["adder/4", "adder/2", "adder/0"]
    assert [solved(episode) for episode in episodes] == [False, True, False]


async def test_no_more_environments_are_created_than_play_at_once(renderer: Renderer) -> None:
    for tasks, concurrency, most in ((10, 3, 3), (2, 16, 2)):
        make = Mock(side_effect=Adder)
        await evaluate(make, answer(renderer), renderer, range(tasks), concurrency=concurrency)
        assert make.call_count == most


@pytest.mark.parametrize("call", ["meet", "meet_later"])
async def test_no_episode_waits_for_the_tools_of_another(renderer: Renderer, call: str) -> None:
    engine = ScriptedEngine(meeting.policy(renderer, call), renderer.tokenizer)
    episodes = await evaluate(meeting.Meeting, engine, renderer, range(meeting.PEOPLE), concurrency=meeting.PEOPLE)
    assert [episode.reward for episode in episodes] == [1.0] * meeting.PEOPLE


async def test_an_environment_with_step_inline_is_played_in_the_event_loop(renderer: Renderer) -> None:
    engine = ScriptedEngine(meeting.policy(renderer, "meet"), renderer.tokenizer)
    meeting.Meeting.barrier = Barrier(2, timeout=0.2)
    episodes = await evaluate(meeting.Hasty, engine, renderer, range(2), concurrency=2)
    assert ["BrokenBarrierError" in episode.failure for episode in episodes] == [True, True]


async def test_an_episode_does_not_depend_on_what_else_is_played(renderer: Renderer) -> None:
    together = await evaluate(Adder, answer(renderer), renderer, range(6), seed=1, concurrency=4)
    alone = await evaluate(Adder, answer(renderer), renderer, [5], seed=1, concurrency=1)
    other = await evaluate(Adder, answer(renderer), renderer, [5], seed=2, concurrency=1)
    assert together[5] == alone[0]
    assert alone[0].seed != other[0].seed
    assert len({episode.seed for episode in together}) == 6


async def test_a_failed_episode_is_neither_right_nor_wrong(renderer: Renderer) -> None:
    episodes = await evaluate(Adder, answer(renderer, crash_on=2), renderer, [2, 3, 4])
    result = Evaluation.of(episodes)
    assert (result.scored, result.solved, result.failures, result.accuracy) == (2, 1, 1, 0.5)
    assert result.stop_reasons == {"done": 2, "failure": 1}
    # The control: the same episodes without the failure mark give another accuracy.
    unmarked = [replace(episode, stop_reason=StopReason.DONE) for episode in episodes]
    assert Evaluation.of(unmarked).accuracy == pytest.approx(1 / 3)
    nothing = Evaluation.of([])
    assert math.isnan(nothing.accuracy)
    assert math.isnan(nothing.tokens_per_forward_pass)
    assert nothing.interval[1:3] == (0.0, 1.0)


async def test_counts_are_summed_over_turns(renderer: Renderer) -> None:
    episode, _ = await play(renderer, "call 4", "5")
    sizes = [len(turn.completion.token_ids) for turn in episode.turns]
    said = [
        replace(turn.completion, draft=DraftStats(verify_steps=steps), cached_tokens=cached)
        for turn, steps, cached in zip(episode.turns, (1, 2), (0, 7), strict=True)
    ]
    turns = tuple(replace(turn, completion=one) for turn, one in zip(episode.turns, said, strict=True))
    result = Evaluation.of([replace(episode, turns=turns)] * 2)
    assert (result.turns, result.tokens, result.cached_tokens) == (4, 2 * sum(sizes), 14)
    assert result.prompt_tokens == 2 * sum(len(turn.prompt_ids) for turn in turns)
    assert result.tokens_per_forward_pass == sum(sizes) / 3
    assert result.per_episode(result.turns) == 2
    assert result.cut_turns == 0
    first, second = episode.turns
    cut = replace(first, completion=replace(first.completion, finish_reason=FinishReason.LENGTH))
    result = EvalResult("", "", 1, [replace(episode, turns=(cut, second))], 0.0)
    assert figures(result)["cut turns"] == 1
    assert rows(result)["turns cut by a token limit"] == "1 of 2"
    assert "50% of the turns were cut off at a token limit" in figures(result)["warnings"][0]
    assert figures(result._replace(episodes=[]))["warnings"] == []


def test_correctness_decides_where_it_is_reported_and_the_reward_elsewhere() -> None:
    plain = Episode(env_id="", task=None, seed=None, messages=(), turns=(), stop_reason=StopReason.DONE, rewards={})
    assert not solved(plain)
    assert solved(replace(plain, rewards={"correct": 1.0}))
    assert not solved(replace(plain, rewards={"correct": 0.0, "format": 1.0}))


@pytest.mark.parametrize(
    ("successes", "low", "high"), [(0, 0.0, 0.1611), (1, 0.0089, 0.2361), (10, 0.2993, 0.7007), (20, 0.8389, 1.0)]
)
def test_the_interval_is_wilsons(successes: int, low: float, high: float) -> None:
    from scipy.stats import binomtest

    expected = binomtest(successes, 20).proportion_ci(method="wilson")
    rate, *interval, tasks = wilson_interval(successes, 20)
    assert (rate, tasks) == (successes / 20, 20)
    assert interval == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert interval == pytest.approx((low, high), abs=1e-4)


async def test_samples_of_a_task_start_alike_are_drawn_apart_and_scored_together(renderer, own_rewards):
    sizes: list[tuple[str, int]] = []

    @reward("position", group=True, decides=True)
    def position(samples: Sequence[Sample]) -> list[float]:
        sizes.append((samples[0].task_id, len(samples)))
        return [index / len(samples) for index in range(len(samples))]

    ended: list[Episode] = []
    engine = RecordingEngine(answer(renderer))
    how: Any = {"samples": 3, "concurrency": 2, "on_episode": lambda sampled: ended.append(sampled.episode)}
    episodes = await evaluate(Adder, engine, renderer, [0, 4], scorer=Scorer({"position": 1}), **how)
    assert [episode.task.id for episode in episodes] == ["adder/0"] * 3 + ["adder/4"] * 3
    assert [episode.reward for episode in episodes] == [0.0, 1 / 3, 2 / 3] * 2
    assert sorted(sizes) == [("adder/0", 3), ("adder/4", 3)]
    assert len(set(engine.seeds) - {None}) == 6
    assert len({episode.seed for episode in episodes}) == 2
    assert ended == episodes
    assert episodes[0].turns[0].prompt_ids == episodes[1].turns[0].prompt_ids


async def test_an_answer_that_nobody_can_judge_is_left_out(renderer: Renderer) -> None:
    class Unreadable(Adder):
        def task(self, index: int) -> Task:
            return replace(super().task(index), answer="\\frac{" if index else "5", data_source="math")

    episodes = await evaluate(Unreadable, answer(renderer), renderer, [0, 1], scorer=Scorer({"answer": 1}))
    result = Evaluation.of(episodes)
    assert (result.scored, result.solved, result.ungraded, result.failures) == (1, 1, 1, 0)
    assert result.accuracy == 1.0
