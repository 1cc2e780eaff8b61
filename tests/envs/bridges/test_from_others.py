from types import SimpleNamespace
from typing import Any

import pytest
from playing import play

from turntree.envs import Env, MissingExtra, make, require_conformance
from turntree.envs.bridges.openenv import OpenEnv
from turntree.envs.bridges.reasoning_gym import ReasoningGym
from turntree.envs.bridges.textarena import TextArena
from turntree.envs.bridges.verifiers import Verifiers
from turntree.envs.errors import DataError


def finish(env: Env, *turns: str, index: int = 0) -> float:
    return sum(step[1] for step in play(env, turns, index))


class Echo:
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


class Numbers(list[Any]):
    def __init__(self, name: str, *, size: int, seed: int, **settings: Any) -> None:
        super().__init__(
            {"question": f"{name} {n}?", "answer": str(n + seed), "metadata": settings} for n in range(size)
        )
        self.seed = seed

    def score_answer(self, answer: str, entry: Any) -> float:
        return float(answer == entry["answer"])


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Stand-ins for reasoning-gym and verifiers; make test-interop tests with the libraries themselves.

    def load(config: Any) -> Any:
        if config.id != "sums-v1":
            raise ModuleNotFoundError(f"taskset {config.id!r} not found")
        row = SimpleNamespace(data=SimpleNamespace(prompt=f"{config.first}+2?"), answer="4")
        return [row]

    gym = SimpleNamespace(create_dataset=Numbers)
    stubs = {
        "reasoning_gym": gym,
        "reasoning_gym.factory": SimpleNamespace(DATASETS={"chain_sum": None}),
        "verifiers.v1": SimpleNamespace(load_taskset=load, taskset_config_type=lambda name: SimpleNamespace),
    }
    for name, stub in stubs.items():
        monkeypatch.setitem(__import__("sys").modules, name, stub)


@pytest.mark.usefixtures("installed")
def test_task_sets_of_other_libraries_are_made_by_name() -> None:
    env = make("reasoning_gym:chain_sum", size=3, data_seed=7)
    assert (env.num_tasks, env.task(2).prompt, env.task(2).answer) == (3, "chain_sum 2?", "9")
    assert finish(env, "#### 9", index=2) == 1.0
    env = make("verifiers:sums-v1", score=score_now, config={"first": 2})
    assert env.task(0).id == "sums-v1/0"
    assert [finish(env, answer) for answer in ("4", "5")] == [1.0, 0.0]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("reasoning_gym:chain_smu", "no data set 'chain_smu'; did you mean 'chain_sum'"),
        ("verifiers:sums-v2", "verifiers:sums-v2 cannot be loaded: taskset 'sums-v2' not found"),
    ],
)
def test_a_task_set_that_is_not_there_is_named(name: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        make(name)


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [("gem:game:Sudoku-v0-easy", "gem", "gem-llm"), ("verifiers:x", "verifiers.v1", "verifiers")],
)
def test_a_name_of_a_missing_library_says_what_to_install(
    name: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtra, match=f"pip install {package}"):
        make(name)
