from dataclasses import replace

import pytest
from echoing import spoken

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.record import episode_from_dict, episode_to_dict
from turntree.agents.scoring.judging import judge_episodes
from turntree.agents.scoring.scorer import Scorer
from turntree.rewards import Sample, reward

pytestmark = pytest.mark.usefixtures("own_rewards")


async def graded(episode: Episode, **rewards: float) -> Episode:
    return (await judge_episodes([episode], Scorer(rewards or {"answer": 1.0})))[0]


async def test_the_reward_lies_on_the_last_turn_and_what_the_environment_gave_where_it_was_earned() -> None:
    first, last = spoken("a", "#### 42").turns
    paid = replace(spoken(), turns=(replace(first, reward=3.0), last), rewards={"correct": 0.0, "steps": 2.0})
    episode = await graded(paid, answer=1.0, finished=0.5)
    assert [turn.reward for turn in episode.turns] == [0.0, 1.5]
    assert episode.rewards == {"correct": 1.0, "steps": 2.0, "answer": 1.0, "finished": 1.0}
    assert not episode.masked
    paid = replace(spoken(), turns=(replace(first, reward=0.5), replace(last, reward=0.25)))
    episode = await graded(paid, environment=2.0, finished=0.5)
    assert [turn.reward for turn in episode.turns] == [1.0, 1.0]
    assert episode.reward == 2.0


async def test_what_cannot_be_graded_is_masked_and_names_its_rewards() -> None:
    plain = spoken("#### 42")
    episode = await graded(replace(plain, task=replace(plain.task, answer="\\frac{")))
    assert episode.ungraded == ("answer",)
    assert episode.masked
    assert episode.stop_reason is StopReason.DONE
    assert episode_from_dict(episode_to_dict(episode)) == episode


async def test_rewards_that_raise_are_a_failure_of_the_infrastructure() -> None:
    @reward("broken")
    def broken(_: Sample) -> float:
        raise OSError("the judge is gone")

    episode = await graded(spoken("#### 42"), answer=1.0, broken=0.5)
    assert episode.masked
    assert episode.failure == "the rewards answer, broken raised OSError: the judge is gone"


async def test_failures_stay_what_they_are() -> None:
    right = spoken("#### 42")
    failed = replace(right, stop_reason=StopReason.FAILURE, failure="no disk")
    first, second = await judge_episodes([failed, right], Scorer({"answer": 1}))
    assert (first, second.reward) == (failed, 1.0)
