import time
from dataclasses import replace
from unittest.mock import Mock

import pytest
from machine_speed import patience
from recording_engine import RecordingEngine, a_turn
from tables import table

from turntree.agents.engines.protocol import FinishReason
from turntree.agents.engines.routing import NoReplicas
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.failures import FailureKind, count_failures, failure_kind
from turntree.agents.episodes.record import episode_from_dict, episode_to_dict
from turntree.agents.errors import EngineAborted, EngineFailed, EngineLost
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.scoring.judging import judge_episodes
from turntree.agents.scoring.scorer import Scorer
from turntree.envs import Env, Message, Reply, Task, ToolError, tool
from turntree.envs.errors import SandboxTimeout, UngradedAnswer
from turntree.envs.running.executor import ToolExecutor
from turntree.envs.sandbox import SandboxError
from turntree.rewards import RewardDefinitionError, Sample, reward


class Breaking(Env):
    executor = ToolExecutor(seconds=patience(0.5))

    @tool
    def act(self, x: str) -> str:
        """Break in a given way. A late call of a tool with state is a failure.

        Args:
            x: Which way.
        """
        if x == "tool":
            raise OSError("the disk is full")
        if x == "unanswered":
            raise TimeoutError("no answer")
        if x == "misleading":
            raise OSError("the rewards took longer than EngineLost")
        if x == "killed":
            raise SandboxError("the sandbox's supervisor died: EOFError")
        if x == "wrong":
            raise ToolError("not like this")
        if x == "late":
            time.sleep(patience(5))
        return "fine"

    def task(self, index: int) -> Task:
        return Task(id=f"breaking/{index}", prompt="go", answer="5", data_source="math")

    def reply(self, message: Message) -> Reply:
        if message.content == "environment":
            raise ValueError("no such room")
        if message.content == "sandbox":
            raise SandboxError("the sandbox's supervisor died: EOFError")
        if message.content == "late sandbox":
            raise SandboxTimeout("the sandbox's supervisor did not answer within 5 s")
        if message.content == "unreadable":
            raise RewardDefinitionError("no such rule")
        if message.content == "ungraded":
            raise UngradedAnswer("neither")
        return Reply(reward=1.0, done=True)


async def said(renderer: Renderer, *texts: str) -> Episode:
    env = Breaking(tool_format="compact")
    return await rollout(env, ScriptedEngine(texts, renderer.tokenizer), renderer, index=0)


@pytest.mark.parametrize(("texts", "kind"), table(__file__, "broken"))
async def test_what_broke_in_an_environment_is_told_apart(renderer: Renderer, texts: list[str], kind: str) -> None:
    assert failure_kind(await said(renderer, *texts)) == (kind or None)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        *((error, FailureKind.ENGINE) for error in (EngineLost("gone"), EngineFailed("too long"), EngineAborted("up"))),
        *((answer, FailureKind.ENGINE) for answer in (NoReplicas("all"), OSError(), a_turn())),
        (a_turn(5, finish_reason=FinishReason.ABORT), FailureKind.ENGINE),
        (TimeoutError("no answer"), FailureKind.TIMEOUT),
    ],
)
async def test_what_an_engine_raises_gives_up_or_answers_too_late_is_told_apart(renderer, answer, kind) -> None:
    episode = await rollout(Breaking(), RecordingEngine(answer), renderer, index=0)
    assert failure_kind(episode) is kind


async def test_a_step_that_raises_after_a_turn_counts_as_the_environment(renderer: Renderer) -> None:
    broken = Breaking()
    broken.step = Mock(side_effect=RuntimeError("EngineLost"))  # type: ignore[method-assign]
    episode = await rollout(broken, ScriptedEngine(["5"], renderer.tokenizer), renderer, index=0)
    assert (len(episode.turns), failure_kind(episode)) == (1, FailureKind.ENVIRONMENT)


async def test_the_kind_of_a_failure_is_read_from_its_record(renderer: Renderer) -> None:
    row = episode_to_dict(await said(renderer, "act(tool)"))
    assert count_failures([episode_from_dict(row)]) == {FailureKind.TOOL: 1}
    del row["failure_kind"]  # not known: the environment's
    assert count_failures([episode_from_dict(row)]) == {FailureKind.ENVIRONMENT: 1}


async def test_a_death_of_a_ray_actor_counts_as_the_engine(renderer: Renderer) -> None:
    exceptions = pytest.importorskip("ray.exceptions")
    for error in (exceptions.RayActorError(), exceptions.ActorUnavailableError("busy", None)):
        episode = await rollout(Breaking(), RecordingEngine(error), renderer, index=0)
        assert failure_kind(episode) is FailureKind.ENGINE


async def test_rewards_that_raise_or_cannot_decide_count_as_the_reward(renderer: Renderer, own_rewards: None) -> None:
    @reward("raising")
    def raising(sample: Sample) -> float:
        raise TimeoutError("the judge took longer than 5 s")

    episode = await said(renderer, "5")
    (graded,) = await judge_episodes([episode], Scorer({"raising": 1.0}))
    assert failure_kind(graded) is failure_kind(replace(episode, ungraded=("answer",))) is FailureKind.REWARD
