import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from turntree.envs import Env, Limits, Message, Reply, Role, Task, make, tool
from turntree.envs.conformance import CHECKS, check_environment, require_conformance
from turntree.envs.errors import ConformanceError
from turntree.envs.script import MAX_STEPS, play, script_for


class Counter(Env):
    """Counts the policy's turns and greets it with a drawn number; the toy that breaks below."""

    num_tasks = 9

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = 0

    def task(self, index: int) -> Task:
        return Task(id=f"counter/{index}", prompt=f"Count to {index}.", answer=str(index))

    def start(self, task: Task) -> Sequence[Message]:
        self.count = 0
        return [*super().start(task), self.says(f"Luck: {self.luck()}")]

    def reply(self, message: Message) -> Reply:
        self.count += 1
        return Reply(messages=[self.says(f"{self.count}, luck {self.luck()}")], done=self.count == 5)

    def luck(self) -> int:
        return int(self.np_random.integers(1000))

    def says(self, text: str) -> Message:
        return Message(role=Role.USER, content=text)

    @tool
    def double(self, number: int) -> int:
        """Double a number and the count.

        Args:
            number: What to double
        """
        self.count += 1
        return number * 2


class DrawsGlobally(Counter):
    def luck(self) -> int:
        return random.randrange(1000)


class DrawsFromNumpy(Counter):
    def luck(self) -> int:
        return int(np.random.randint(1000))


class DrawsFresh(Counter):
    def luck(self) -> int:
        return int(np.random.default_rng().integers(10**9))


class SharesItsGenerator(Counter):
    rng = random.Random(0)

    def start(self, task: Task) -> Sequence[Message]:
        type(self).rng = random.Random(1)
        return super().start(task)

    def luck(self) -> int:
        return type(self).rng.randrange(10**9)


class ForgetsState(Counter):
    static_attributes = Counter.static_attributes | {"count"}


class KeepsOldState(Counter):
    def start(self, task: Task) -> Sequence[Message]:
        kept = self.count
        opening = super().start(task)
        self.count = kept
        return opening


class HoldsALambda(Counter):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.greet = lambda: "hello"


class LosesItsCountWhenPickled(Counter):
    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "count": 0}


class AddsAKey(Counter):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "extra": 1}


class PutsASetIntoInfo(Counter):
    def _info(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**super()._info(*args, **kwargs), "rewards": {1, 2}}


class PutsATupleIntoInfo(Counter):
    def _info(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**super()._info(*args, **kwargs), "rewards": (1, 2)}


class EndsTwice(Counter):
    def step(self, action: str) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, terminated, info


class EndsWithoutReason(Counter):
    def step(self, action: str) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "stop_reason": ""}


class GoesOnForEver(Counter):
    def step(self, action: str) -> Any:
        try:
            return super().step(action)
        except Exception:
            return "", 0.0, True, False, {}


class TripsOverText(Counter):
    def reply(self, message: Message) -> Reply:
        int(message.content)
        return super().reply(message)


class TripsOverSurrogates(Counter):
    def reply(self, message: Message) -> Reply:
        message.content.encode()
        return super().reply(message)


class DrawsItsTasks(Counter):
    def task(self, index: int) -> Task:
        return Task(id=f"counter/{index}", prompt=f"Count to {random.random()}.")


class IgnoresTheIndex(Counter):
    def _choose_task(self, options: Any) -> Task:
        return self.task(3)


class ClosesOnce(Counter):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class WithoutSeed(Counter):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=None, options=options)


class DropsTheSpace(Counter):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = None  # type: ignore[assignment]


def problems(make_env: Callable[[], Env], turns: Sequence[str] | None = None) -> dict[str, str]:
    return {finding.check: finding.problem for finding in check_environment(make_env, turns) if not finding.passed}


def test_a_sound_environment_passes_every_check() -> None:
    assert problems(Counter) == {}
    assert problems(functools.partial(Counter, limits=Limits(max_turns=2))) == {}
    require_conformance(Counter, ["a", "b"])


@pytest.mark.parametrize(
    ("broken", "check", "hint"),
    [
        (DropsTheSpace, "Gymnasium's own checker", "observation space"),
        (WithoutSeed, "the seed reproduces a dialogue", "step 0: observation"),
        (DrawsFresh, "the seed reproduces a dialogue", "a second environment with the same seed: step 0"),
        (KeepsOldState, "the seed reproduces a dialogue", "reset again with the same seed"),
        (DrawsGlobally, "only self.np_random is drawn from", "draw from self.np_random"),
        (DrawsFromNumpy, "only self.np_random is drawn from", "draw from self.np_random"),
        (SharesItsGenerator, "environments do not disturb each other", "another environment played meanwhile"),
        (ForgetsState, "snapshots restore an episode", "restored after turn 0"),
        (HoldsALambda, "snapshots restore an episode", "raised"),
        (HoldsALambda, "pickling keeps an episode", "raised"),
        (LosesItsCountWhenPickled, "pickling keeps an episode", "unpickled after turn 1"),
        (AddsAKey, "info is JSON with the same keys", "step 1: the keys of info differ by ['extra']"),
        (PutsASetIntoInfo, "info is JSON with the same keys", "info is not JSON"),
        (PutsATupleIntoInfo, "info is JSON with the same keys", "read back: ['rewards']"),
        (EndsTwice, "an episode ends once, for one reason", "both terminated and truncated"),
        (EndsWithoutReason, "an episode ends once, for one reason", "stop_reason is ''"),
        (GoesOnForEver, "an episode ends once, for one reason", "does not raise ResetNeeded"),
        (TripsOverText, "no text leads to a failure", "raised ValueError"),
        (TripsOverSurrogates, "no text leads to a failure", "surrogates not allowed"),
        (DrawsItsTasks, "tasks are found by index", "task(0) differs"),
        (IgnoresTheIndex, "tasks are found by index", "reset with index plays 'counter/3'"),
        (ClosesOnce, "close() may be called twice", "closed already"),
        (DropsTheSpace, "vector environments play it", "raised"),
    ],
)
def test_each_check_finds_what_it_is_for(broken: type[Env], check: str, hint: str) -> None:
    assert hint in problems(broken)[check]


def test_every_check_has_an_environment_that_fails_it() -> None:
    (mark,) = test_each_check_finds_what_it_is_for.pytestmark  # type: ignore[attr-defined]
    assert {case[1] for case in mark.args[1]} == set(CHECKS)


def test_one_error_names_every_broken_rule() -> None:
    with pytest.raises(ConformanceError, match=r"(?s)info is JSON.*extra"):
        require_conformance(AddsAKey)


def test_the_global_generators_are_left_as_they_were() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    with pytest.raises(ConformanceError, match="global random state changed"):
        CHECKS["only self.np_random is drawn from"](DrawsGlobally, ["a"])
    problems(Counter)
    assert (random.random(), np.random.random()) == expected


def test_a_script_calls_every_tool_and_speaks() -> None:
    env = Counter()
    turns = script_for(env)
    assert "double" in turns[0]
    steps = play(env, turns, seed=0)
    assert steps[1].observation == "2"
    assert any(call["function"]["name"] == "double" for call in steps[1].info["tool_calls"])
    assert len(steps) <= MAX_STEPS + 1


def test_another_library_s_environment_is_refused() -> None:
    import gymnasium

    with pytest.raises(TypeError, match="check_env"):
        check_environment(lambda: gymnasium.make("CartPole-v1"))  # type: ignore[arg-type, return-value]


def test_the_arithmetic_environment_passes() -> None:
    require_conformance(functools.partial(make, "turntree/Arithmetic-v0"))
