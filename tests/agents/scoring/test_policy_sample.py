from dataclasses import replace
from typing import Any

import pytest
from echoing import ECHO, GOLD, Echoing, spoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.scoring.judging import judge_episodes
from turntree.agents.scoring.policy_sample import ENVIRONMENT_REWARD, policy_sample
from turntree.agents.scoring.scorer import Scorer
from turntree.envs import Limits, Message, Role, Task, make
from turntree.rewards import Sample


async def play(renderer: Renderer, *texts: str, **limits: Any) -> Episode:
    env = Echoing(limits=Limits(**limits))
    return await rollout(env, ScriptedEngine(texts, renderer.tokenizer), renderer, index=0, seed=0)


async def reward(episode: Episode) -> float:
    return (await judge_episodes([episode], Scorer({"answer": 1})))[0].reward


async def test_what_the_policy_says_itself_is_paid(renderer: Renderer) -> None:
    episode = await play(renderer, "hm", f"It is \\boxed{{{GOLD}}}")
    assert await reward(episode) == 1.0
    assert policy_sample(episode).question == episode.task.prompt  # type: ignore[union-attr]


@pytest.mark.parametrize("texts", table(__file__, "unpaid"))
async def test_what_tools_and_the_environment_say_is_never_paid(renderer: Renderer, texts: tuple[str, ...]) -> None:
    episode = await play(renderer, *texts, max_turns=2)
    assert any(GOLD in message.content for turn in episode.turns for message in turn.observation)
    assert episode.failure == ""
    assert await reward(episode) == 0.0


async def test_the_environments_that_ship_do_not_pay_for_what_a_tool_printed(renderer: Renderer) -> None:
    async def played(*texts: str) -> Episode:
        env = make("turntree/Arithmetic-v0", tool_format="compact")
        task = Task(id="t", prompt="6*7", answer=GOLD)
        return await rollout(env, ScriptedEngine(texts, renderer.tokenizer), renderer, task=task, seed=0)

    silent = await played("calculator(6*7)", "so that is it")
    assert GOLD in silent.turns[0].observation[0].content
    assert silent.reward == 0.0
    assert (await played("calculator(6*7)", f"#### {GOLD}")).reward == 1.0


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.sampled_from(["no idea", "#### 7", "\\boxed{42", ""]) | st.text(max_size=20), max_size=3),
    others=st.lists(
        st.sampled_from([ECHO, GOLD, f"#### {GOLD}", f"\\boxed{{{GOLD}}}", "7"]) | st.text(max_size=20), max_size=3
    ),
)
def test_a_sample_does_not_change_with_what_others_say(texts: list[str], others: list[str]) -> None:
    def heard(role: Role) -> Sample:
        return policy_sample(spoken(*texts, observations=tuple(Message(role=role, content=said) for said in others)))

    alone = policy_sample(spoken(*texts))
    assert alone.turns == tuple(texts)
    assert heard(Role.USER) == heard(Role.SYSTEM) == alone
    tool_said = heard(Role.TOOL)
    assert (tool_said.turns, tool_said.metadata) == (alone.turns, alone.metadata)
    assert ECHO not in str(alone.metadata)
    assert tool_said.answer_text == "" or not others


def test_calls_and_their_errors_are_counted() -> None:
    wrong = (Message(role=Role.TOOL, content="Error: there is no tool 'x'"),)
    sample = policy_sample(spoken("a", "b", observations=wrong, calls=True))
    assert (sample.tool_calls, sample.tool_errors) == (2, 2)
    fine = (Message(role=Role.TOOL, content="12"),)
    assert policy_sample(spoken("a", observations=fine, calls=True)).tool_errors == 0


def test_the_task_and_the_environments_reward_come_along() -> None:
    episode = spoken("a", "b")
    first, last = episode.turns
    task = replace(episode.task, metadata={"level": 3})
    turns = (replace(first, reward=0.25), replace(last, reward=0.5))
    sample = policy_sample(replace(episode, task=task, turns=turns, stop_reason=StopReason.MAX_TURNS))
    assert (sample.gold, sample.data_source, sample.task_id) == (GOLD, "math", "t")
    assert sample.truncated
    assert sample.metadata == {"level": 3, ENVIRONMENT_REWARD: 0.75}
