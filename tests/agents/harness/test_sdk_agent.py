import sys
from pathlib import Path
from typing import Any

import pytest
from example_files import load
from gateways import SpokenEngine

from turntree.agents.episodes.episode import StopReason
from turntree.agents.harness.env import HarnessEnv
from turntree.agents.loop.rollout import rollout
from turntree.envs import Limits, Task

pytestmark = pytest.mark.interop
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Any:
    # The SDK's package has the name of this repository's folder, which pytest may find first.
    monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path).resolve() != ROOT])
    module = load("sdk_agent")
    monkeypatch.setitem(sys.modules, "sdk_agent", module)
    return module


@pytest.mark.parametrize(
    ("words", "reward", "tool"),
    [
        (["multiply(3*4)", "calculator(2+12)", "#### 14"], 1.0, ["12", "14"]),
        (["calculator(3*4)", "#### 3"], 0.0, ["."]),
        (["multiply(3*4)"] * 9, 0.0, ["12"] * 5),
    ],
)
async def test_an_agent_of_an_sdk_is_played_as_it_is(agent, chatml, renderer, words, reward, tool):
    engine = SpokenEngine(chatml)
    engine.say = lambda prompt: words[len(engine.asked) - 1]
    tasks = {"env": "turntree/Arithmetic-v0", "rewards": {"answer": 1}, "answer_format": "gsm8k"}
    env = HarnessEnv(**tasks, program="sdk_agent:solve", tool_format="compact", limits=Limits(max_context_tokens=4000))
    task = Task(id="it", prompt="2+3*4", answer="14")
    episode = await rollout(env, engine, renderer, task=task, seed=1)
    assert (episode.stop_reason, episode.failure, episode.reward) == (StopReason.DONE, "", reward)
    assert [message.content for message in episode.messages if message.role == "tool"] == tool
    assert [turn.text for turn in episode.turns] == words[: len(tool) + 1]
    assert not episode.extra_dialogues
