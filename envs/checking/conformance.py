"""Conformance checks of an environment, run by playing it.

A check plays fresh environments with a script (a fixed list of turns) and raises if a rule is broken;
``check_environment`` turns these errors into findings. A check covers only the turns in the script, so pass turns that
reach the interesting states of your environment. Not covered: whether rewards are right, and speed.
"""

from __future__ import annotations

import json
import pickle
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

from turntree.envs.checking.script import Step, begin, difference, play, script_for, take
from turntree.envs.env import Env
from turntree.envs.errors import ConformanceError, ResetNeeded
from turntree.envs.failure import describe
from turntree.envs.running.containment import contain

_SEED = 1234
_MIDDLE = 3  #: snapshots are taken after turn 1, 2, ... up to this turn
#: Gymnasium's warning about an environment made without an id, which is no fault
_NO_SPEC = "due to the environment not having a spec"
#: answers that are hard to parse for a verifier; a verifier must nevertheless grade each of these
_BEYOND = (r"\gcd(x,7)", r"\pi \bmod 2", r"\mathbb{E}[X]", r"\sum_{k=1}^{n} k", r"\cot 0", r"\gcd(9^{9^9},3)")
_HOSTILE = (  # turns that an environment must survive
    *("", "\x00", "\ud800", "<tool_call>{", "((((" * 500, "word " * 20_000, "#### ", r"\boxed{", "{}[]()<>\\"),
    *(template % answer for answer in _BEYOND for template in (r"\boxed{%s}", "#### %s")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    check: str  #: the rule, as a short sentence
    problem: str = ""  #: how the rule is broken; empty if it is not

    @property
    def passed(self) -> bool:
        """Whether the environment obeys the rule."""
        return not self.problem


def check_environment(make: Callable[[], Env], turns: Sequence[str] | None = None) -> list[Finding]:
    """Run all conformance checks.

    Args:
        make: Creates a fresh environment, each time with the same arguments.
        turns: A script, shape (turns,); ``None`` calls each tool once and then plays a few plain turns.

    Returns:
        One finding per check, in the order of ``CHECKS``.
    """
    env = make()
    if not isinstance(env, Env):
        raise TypeError(f"expected a turntree.envs.Env, got {type(env).__name__}; use Gymnasium's check_env for it")
    script = tuple(turns) if turns else script_for(env)
    return [_finding(sentence, check, make, script) for sentence, check in CHECKS.items()]


def require_conformance(make: Callable[[], Env], turns: Sequence[str] | None = None) -> None:
    """Raise if any conformance check fails; meant for tests.

    Args:
        make: Creates a fresh environment, each time with the same arguments.
        turns: See ``check_environment``.

    Raises:
        ConformanceError: If the environment breaks a rule; the message names all broken rules.
    """
    problems = [f"{finding.check}: {finding.problem}" for finding in check_environment(make, turns) if finding.problem]
    if problems:
        raise ConformanceError("\n".join(problems))


_Check = Callable[[Callable[[], Env], Sequence[str]], None]


def _finding(sentence: str, check: _Check, make: Callable[[], Env], script: Sequence[str]) -> Finding:
    try:
        contain(partial(check, make, script))
    except ConformanceError as error:
        return Finding(check=sentence, problem=str(error))
    except Exception as error:  # an environment that raises breaks the rule that was being checked
        return Finding(check=sentence, problem=f"raised {describe(error)}")
    return Finding(check=sentence)


def _gymnasium(make: Callable[[], Env], script: Sequence[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(make())
        except AssertionError as error:
            raise ConformanceError(str(error)) from error
    complaints = [str(w.message) for w in caught if _NO_SPEC not in str(w.message)]
    if complaints:
        raise ConformanceError("; ".join(complaints))


def _seeded(make: Callable[[], Env], script: Sequence[str]) -> None:
    env = make()
    first = play(env, script, seed=_SEED)
    _same(first, play(make(), script, seed=_SEED), "a second environment with the same seed")
    begin(env, seed=_SEED + 1)
    _same(first, play(env, script, seed=_SEED), "the same environment, reset again with the same seed")


def _global_randomness(make: Callable[[], Env], script: Sequence[str]) -> None:
    transcripts = []
    kept = random.getstate(), np.random.get_state()
    try:
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)
            before = random.getstate(), pickle.dumps(np.random.get_state())
            transcripts.append(play(make(), script, seed=_SEED))
            if (random.getstate(), pickle.dumps(np.random.get_state())) != before:
                raise ConformanceError("the global random state changed; draw from self.np_random")
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
    _same(transcripts[0], transcripts[1], "with another global seed")


def _alone(make: Callable[[], Env], script: Sequence[str]) -> None:
    expected = play(make(), script, seed=_SEED)
    env, other = make(), make()
    got = [begin(env, seed=_SEED)]
    for number in range(len(expected) - 1):
        begin(other, seed=number)
        take(other, script, last=number // 2)
        got += take(env, script, first=number, last=number + 1)
    _same(expected, got, "with another environment played meanwhile")


def _snapshot(make: Callable[[], Env], script: Sequence[str]) -> None:
    for middle in range(_MIDDLE + 1):
        env = make()
        begin(env, seed=_SEED)
        if any(step.ended for step in take(env, script, last=middle)):
            return
        state = env.snapshot()
        rest = take(env, script, first=middle)
        env.restore(state)
        _same(rest, take(env, script, first=middle), f"restored after turn {middle}")
        fresh = make()
        fresh.restore(state)
        _same(rest, take(fresh, script, first=middle), f"restored in a fresh environment after turn {middle}")
        env.reset(seed=_SEED + 1)
        env.restore(state)
        _same(rest, take(env, script, first=middle), f"restored in another episode after turn {middle}")


def _copies(make: Callable[[], Env], script: Sequence[str]) -> None:
    env = make()
    if not env.forkable:
        return
    expected = play(make(), script, seed=_SEED)
    copied, own = [], [begin(env, seed=_SEED)]
    for number in range(len(expected) - 1):
        copy = env.fork(env.snapshot())
        copied += take(copy, script, first=number, last=number + 1)
        own += take(env, script, first=number, last=number + 1)
        copy.close_episode()
    _same(
        expected,
        own,
        "after a copy took each step first; with forkable = True, a step must have no effect outside the environment",
    )
    _same(expected[1:], copied, "taken by copies")


def _pickles(make: Callable[[], Env], script: Sequence[str]) -> None:
    pickle.loads(pickle.dumps(make()))
    env = make()
    begin(env, seed=_SEED)
    if any(step.ended for step in take(env, script, last=1)):
        return
    copy = pickle.loads(pickle.dumps(env))
    _same(take(env, script, first=1), take(copy, script, first=1), "unpickled after turn 1")


def _infos(make: Callable[[], Env], script: Sequence[str]) -> None:
    steps = play(make(), script, seed=_SEED)
    keys = set(steps[0].info)
    for number, step in enumerate(steps):
        if set(step.info) != keys:
            raise ConformanceError(f"step {number}: the keys of info differ by {sorted(set(step.info) ^ keys)}")
        try:
            back = json.loads(json.dumps(step.info, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ConformanceError(f"step {number}: info is not JSON: {error}") from error
        if back != step.info:
            changed = [key for key in back if back[key] != step.info.get(key)]
            raise ConformanceError(f"step {number}: info changes when written as JSON and read back: {changed}")


def _ends(make: Callable[[], Env], script: Sequence[str]) -> None:
    env = make()
    steps = play(env, script, seed=_SEED)
    for number, step in enumerate(steps):
        reason = str(step.info["stop_reason"])
        if step.terminated and step.truncated:
            raise ConformanceError(f"step {number}: both terminated and truncated")
        if step.ended != bool(reason):
            raise ConformanceError(f"step {number}: ended is {step.ended}, but stop_reason is {reason!r}")
        if step.terminated != (reason == "done"):
            raise ConformanceError(f"step {number}: terminated is {step.terminated}, but stop_reason is {reason!r}")
    if steps[-1].ended:
        try:
            env.step("")
        except ResetNeeded:
            return
        raise ConformanceError("step() after the end of an episode does not raise ResetNeeded")


def _no_failure(make: Callable[[], Env], script: Sequence[str]) -> None:
    env = make()
    for turns in (script, *((text,) for text in _HOSTILE)):
        for step in play(env, turns, seed=_SEED):
            if step.info["failure"]:
                raise ConformanceError(f"the turn {turns[0][:40]!r} led to a failure: {step.info['failure']}")


def _tasks(make: Callable[[], Env], script: Sequence[str]) -> None:
    env, other = make(), make()
    for index in (0, 1, 7):
        if env.num_tasks is not None and index >= env.num_tasks:
            continue
        task = env.task(index)
        if task != other.task(index):
            raise ConformanceError(f"task({index}) differs between two environments")
        for options in ({"index": index}, {"task": task}):
            info = env.reset(seed=_SEED, options=options)[1]
            if info["task_id"] != task.id:
                raise ConformanceError(f"reset with {next(iter(options))} plays {info['task_id']!r}, not {task.id!r}")
        _json(task.metadata, f"metadata of task({index})")


def _closes(make: Callable[[], Env], script: Sequence[str]) -> None:
    never_used = make()
    never_used.close()
    never_used.close()
    env = make()
    begin(env, seed=_SEED)
    env.close()
    env.close()


def _vector(make: Callable[[], Env], script: Sequence[str]) -> None:
    env = SyncVectorEnv([make, make])
    try:
        env.reset(seed=[_SEED, _SEED])
        alone = play(make(), script, seed=_SEED)[1:]
        for number, step in enumerate(alone):
            turn = script[number % len(script)]
            observations, rewards, terminated, truncated, _ = env.step((turn, turn))
            for at in range(2):
                got = (observations[at], float(rewards[at]), bool(terminated[at]), bool(truncated[at]))
                if got != (step.observation, step.reward, step.terminated, step.truncated):
                    raise ConformanceError(f"step {number}: in a vector environment the observation is {got[0]!r:.80}")
    finally:
        env.close()


def _same(expected: Sequence[Step], got: Sequence[Step], when: str) -> None:
    where = difference(expected, got)
    if where:
        raise ConformanceError(f"{when}: {where}")


def _json(value: Any, what: str) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConformanceError(f"{what} is not JSON: {error}") from error


#: rule, as a short sentence -> the check that tests this rule
CHECKS: Mapping[str, _Check] = {
    "Gymnasium's own checker": _gymnasium,
    "the seed reproduces a dialogue": _seeded,
    "only self.np_random is drawn from": _global_randomness,
    "environments do not disturb each other": _alone,
    "snapshots restore an episode": _snapshot,
    "copies of a forkable environment take its steps": _copies,
    "pickling keeps an episode": _pickles,
    "info is JSON with the same keys": _infos,
    "an episode ends once, for one reason": _ends,
    "no text leads to a failure": _no_failure,
    "tasks are found by index": _tasks,
    "close() may be called twice": _closes,
    "vector environments play it": _vector,
}
