"""An environment that answers a repeated episode from its record.

It wraps environments whose steps have no outside effect (``Env.forkable``). While ``reset`` and ``step`` get the
recorded arguments, the record answers. At the first different turn, the environment is restored to the snapshot before
that turn and steps for real.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from turntree.envs import Env


class _Step(NamedTuple):
    text: str
    before: bytes  #: snapshot of the environment before the step
    answer: tuple[Any, ...]


def can_be_recorded(env: Any) -> bool:
    """Return whether ``env`` can be restored; wrappers and environments with outside effects cannot."""
    return isinstance(env, Env) and env is env.unwrapped and env.forkable


class RecordedEnv:
    """Wrap an environment for which ``can_be_recorded`` is true; pass the wrapper to ``rollout``."""

    def __init__(self, env: Env) -> None:
        self.env: Env | None = env
        self._reset: tuple[dict[str, Any], bytes, tuple[Any, ...]] | None = None
        self._steps: list[_Step] = []
        self._next = 0  #: steps that the current episode has taken, from the record or for real
        self._at = -1  #: recorded steps that the environment itself has taken; -1 if unknown

    @property
    def unwrapped(self) -> Env:
        return self._env

    @property
    def spec(self) -> Any:
        return self._env.spec

    @property
    def _env(self) -> Env:
        assert self.env is not None, "attach() an environment before it is played"
        return self.env

    def detach(self) -> Env:
        """Return the wrapped environment and forget it; the record stays."""
        env, self.env, self._at = self._env, None, -1
        return env

    def attach(self, env: Env) -> None:
        """Continue with an environment that was created with the same arguments."""
        self.env, self._at = env, -1

    def reset(self, **arguments: Any) -> tuple[Any, ...]:
        self._next = 0
        if self._reset is None or self._reset[0] != arguments:
            answer = self._env.reset(**arguments)
            self._steps.clear()
            self._reset, self._at = (arguments, self._env.snapshot(), answer), 0
        elif self._at < 0:  # the rollout reads the task from the wrapped environment
            self._env.restore(self._reset[1])
            self._at = 0
        return self._reset[2]

    def step(self, text: str) -> tuple[Any, ...]:
        if self._next < len(self._steps):
            known = self._steps[self._next]
            if known.text == text:
                self._next += 1
                return known.answer
            self._env.restore(known.before)
            del self._steps[self._next :]
            self._at = self._next
        assert self._at == self._next, "the environment is not where the episode is"
        before = self._env.snapshot()
        answer = self._env.step(text)
        self._steps.append(_Step(text, before, answer))
        self._next = self._at = self._next + 1
        return answer
