import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from escaping import Escaping
from playing import made_up
from tables import table

from turntree.envs import Env, Limits, Message, Reply, Role, Task
from turntree.envs.checking.conformance import CHECKS, check_environment, require_conformance
from turntree.envs.checking.script import MAX_STEPS, play, script_for
from turntree.envs.errors import ConformanceError


class Counter(Env):
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

    @made_up
    def double(self, number: int) -> int:
        self.count += 1
        return number * 2


class LosesItsCountWhenPickled(Counter):
    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "count": 0}


def counter_with(**attributes: Any) -> type[Env]:
    return type("Faulty", (Counter,), attributes)


def init(**attributes: Any) -> Callable[..., None]:
    def initialise(self: Counter, **kwargs: Any) -> None:
        Counter.__init__(self, **kwargs)
        vars(self).update(attributes)

    return initialise


def step(change: Callable[..., Any] | None = None, **info: Any) -> Callable[..., Any]:
    def changed(self: Counter, action: str) -> Any:
        *rest, told = outcome = Counter.step(self, action)
        return change(*outcome) if change else (*rest, {**told, **info})

    return changed


def continue_for_ever(self: Counter, action: str) -> Any:
    try:
        return Counter.step(self, action)
    except Exception:
        return "", 0.0, True, False, {}


def keep_the_count(self: Counter, task: Task) -> Sequence[Message]:
    kept, opening = self.count, Counter.start(self, task)
    self.count = kept
    return opening


def seed_the_class(self: Any, task: Task) -> Sequence[Message]:
    type(self).rng = random.Random(1)
    return Counter.start(self, task)


def reply_after(heard: Callable[[str], object]) -> Callable[..., Reply]:
    def reply(self: Counter, message: Message) -> Reply:
        heard(message.content)
        return Counter.reply(self, message)

    return reply


def close_once(self: Any) -> None:
    if vars(self).setdefault("closed", []):
        raise RuntimeError("closed already")
    self.closed.append(True)


class Forkable(Counter):
    forkable = True


class CountsOutside(Counter):
    # Its counter is not part of a snapshot, so a copy changes the original's counter.

    forkable = True
    static_attributes = Counter.static_attributes | {"file"}

    def start(self, task: Task) -> Sequence[Message]:
        self.file: list[str] = []
        return super().start(task)

    def luck(self) -> int:
        if not hasattr(self, "file"):
            return 0
        self.file.append("drawn")
        return len(self.file)


class AnswersOtherwiseInACopy(Counter):
    forkable = True

    def fork(self, state: bytes) -> Any:
        copy = super().fork(state)
        copy.count += 1
        return copy


DrawsGlobally = counter_with(luck=lambda self: random.randrange(1000))
SharesItsGenerator = counter_with(start=seed_the_class, luck=lambda self: type(self).rng.randrange(10**9))
KeepsOldState = counter_with(start=keep_the_count)
AddsAKey = counter_with(step=step(extra=1))
HoldsALambda = counter_with(__init__=init(greet=lambda: "hello"))
DropsTheSpace = counter_with(__init__=init(observation_space=None))
WithoutSeed = counter_with(reset=lambda self, *, seed=None, options=None: Counter.reset(self, options=options))
IgnoresTheIndex = counter_with(reset=lambda self, *, seed=None, options=None: Counter.reset(self, options={"index": 3}))
DrawsFresh = counter_with(luck=lambda self: int(np.random.default_rng().integers(10**9)))
DrawsFromNumpy = counter_with(luck=lambda self: int(np.random.randint(1000)))
DrawsItsTasks = counter_with(task=lambda self, index: Task(id=f"counter/{index}", prompt=f"To {random.random()}."))
ForgetsState = counter_with(static_attributes=Counter.static_attributes | {"count"})
PutsASetIntoInfo = counter_with(step=step(rewards={1, 2}))
PutsATupleIntoInfo = counter_with(step=step(rewards=(1, 2)))
EndsTwice = counter_with(step=step(lambda text, reward, ended, _, info: (text, reward, ended, ended, info)))
EndsWithoutReason = counter_with(step=step(stop_reason=""))
GoesOnForEver = counter_with(step=continue_for_ever)
TripsOverText = counter_with(reply=reply_after(int))
LeavesOpen = counter_with(reply=reply_after(lambda text: 1 // ("\\gcd(x" not in text)))
TripsOverSurrogates = counter_with(reply=reply_after(str.encode))
ClosesOnce = counter_with(close=close_once)


def problems(make_env: Callable[[], Env], turns: Sequence[str] | None = None) -> dict[str, str]:
    return {finding.check: finding.problem for finding in check_environment(make_env, turns) if not finding.passed}


def test_a_sound_environment_passes_every_check() -> None:
    assert problems(Counter) == {}
    assert problems(Forkable) == {}
    assert problems(functools.partial(Counter, limits=Limits(max_turns=2))) == {}
    require_conformance(Counter, ["a", "b"])


@pytest.mark.parametrize(("broken", "check", "hint"), table(__file__, "faulty_environments"))
def test_each_check_finds_what_it_is_for(broken: str, check: str, hint: str) -> None:
    assert hint in problems(globals()[broken])[check]


def test_an_environment_that_would_end_the_process_breaks_a_rule_and_ends_nothing() -> None:
    class Leaving(Escaping):
        def start(self, task: Task) -> list[Message]:
            raise SystemExit(0)

    problems = [finding.problem for finding in check_environment(Leaving, ["I say well"])]
    assert "raised SystemExit: 0" in problems


def test_every_check_has_an_environment_that_fails_it() -> None:
    assert {check for _, check, _ in table(__file__, "faulty_environments")} == set(CHECKS)


def test_one_error_names_every_broken_rule_and_another_librarys_environment_is_refused() -> None:
    with pytest.raises(ConformanceError, match=r"(?s)info is JSON.*extra"):
        require_conformance(AddsAKey)
    import gymnasium

    with pytest.raises(TypeError, match="check_env"):
        check_environment(lambda: gymnasium.make("CartPole-v1"))  # type: ignore[arg-type, return-value]


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
