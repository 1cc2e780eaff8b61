from types import SimpleNamespace
from typing import Any

import pytest
from playing import play

from turntree.envs import Env, MissingExtra, require_conformance
from turntree.envs.bridges.openenv import OpenEnv
from turntree.envs.bridges.reasoning_gym import ReasoningGym
from turntree.envs.bridges.textarena import TextArena
from turntree.envs.bridges.verifiers import Verifiers


def finish(env: Env, *turns: str, index: int = 0) -> float:
    """The rewards of an episode together."""
    return sum(step[1] for step in play(env, turns, index))


class Echo:
    """What OpenEnv's interface asks for."""

    def __init__(self) -> None:
        self.closed = False

    def reset(self, seed: int | None = None) -> Any:
        return SimpleNamespace(text=f"seed {seed}", done=False, reward=None)

    def step(self, action: Any) -> Any:
        return SimpleNamespace(text=f"heard {action['say']}", done=action["say"] == "end", reward=0.5)

    def close(self) -> None:
        self.closed = True


def words(text: str) -> dict[str, str]:
    return {"say": text}


def text_of(observation: Any) -> str:
    return str(observation.text)


def test_openenv_is_told_actions_and_says_observations() -> None:
    echo = Echo()
    env = OpenEnv(lambda: echo, to_action=words, to_text=text_of)
    assert env.reset(options={"index": 3})[0] == "seed 3"
    assert env.step("hi")[:3] == ("heard hi", 0.5, False)
    assert env.step("end")[:3] == ("heard end", 0.5, True)
    env.close()
    assert echo.closed
    require_conformance(lambda: OpenEnv(Echo, to_action=words, to_text=text_of))


def task(prompt: Any, answer: str) -> Any:
    return SimpleNamespace(data=SimpleNamespace(prompt=prompt), answer=answer)


TASKS = [
    task("2+2?", "4"),
    task([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3+3?"}], "6"),
]


def score_now(row: Any, answer: str) -> float:
    return float(row.answer == answer)


async def score_later(row: Any, answer: str) -> float:
    return float(row.answer == answer)


@pytest.mark.parametrize("score", [score_now, score_later])
def test_verifiers_task_sets_are_scored_by_their_tasks(score: Any) -> None:
    env = Verifiers(TASKS, score=score)
    assert [finish(env, answer) for answer in ("4", "5")] == [1.0, 0.0]
    _, info = env.reset(options={"index": 1})
    assert [message["role"] for message in info["messages"]] == ["system", "user"]
    require_conformance(lambda: Verifiers(TASKS, score=score))


@pytest.mark.parametrize(
    ("make", "package"),
    [(lambda: ReasoningGym("chain_sum"), "reasoning-gym"), (lambda: TextArena("GuessTheNumber-v0"), "textarena")],
)
def test_a_missing_library_is_named(make: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, package.replace("-", "_"), None)
    with pytest.raises(MissingExtra, match=f"pip install {package}"):
        make()
