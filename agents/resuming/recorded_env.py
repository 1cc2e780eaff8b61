"""An environment that remembers its episode, and plays the same beginning again without a step.

Around an environment whose steps have no effect outside it (``Env.forkable``). A reset
and each step are answered from the record as long as they are those of the record; at the
first other turn the environment goes back to the snapshot before it and takes that step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from turntree.envs import Env


class _Step(NamedTuple):
    text: str
    before: bytes
    """Snapshot of the environment before it."""
    answer: tuple[Any, ...]


def can_be_recorded(env: Any) -> bool:
    """Whether ``env`` can go back without a trace; a wrapper's own state cannot, and a program's effects neither."""
    return isinstance(env, Env) and env is env.unwrapped and env.forkable


class RecordedEnv:
    """As the environment that it is around, for ``rollout``; see the module's docstring.

    Args:
        env: An environment that ``can_be_recorded``.
    """

    def __init__(self, env: Env) -> None:
        self.env: Env | None = env
        self._reset: tuple[dict[str, Any], bytes, tuple[Any, ...]] | None = None
        self._steps: list[_Step] = []
        self._place = 0
        self._at = -1
        """Steps of the record that the environment itself has taken; -1 where it may be anywhere."""

    @property
    def unwrapped(self) -> Env:
        """The environment."""
        return self._env

    @property
    def spec(self) -> Any:
        """The environment's."""
        return self._env.spec

    @property
    def _env(self) -> Env:
        assert self.env is not None, "attach() an environment before it is played"
        return self.env

    def detach(self) -> Env:
        """Give the environment away; the record stays."""
        env, self.env, self._at = self._env, None, -1
        return env

    def attach(self, env: Env) -> None:
        """Go on with an environment made with the same arguments."""
        self.env, self._at = env, -1

    def reset(self, **arguments: Any) -> tuple[Any, ...]:
        """As the environment's; the same arguments again begin the record."""
        self._place = 0
        if self._reset is None or self._reset[0] != arguments:
            answer = self._env.reset(**arguments)
            self._steps.clear()
            self._reset, self._at = (arguments, self._env.snapshot(), answer), 0
        elif self._at < 0:  # the loop asks the environment itself which task it has
            self._env.restore(self._reset[1])
            self._at = 0
        return self._reset[2]

    def step(self, text: str) -> tuple[Any, ...]:
        """As the environment's; of the record as long as it is followed."""
        if self._place < len(self._steps):
            known = self._steps[self._place]
            if known.text == text:
                self._place += 1
                return known.answer
            self._env.restore(known.before)
            del self._steps[self._place :]
            self._at = self._place
        assert self._at == self._place, "the environment is not where the episode is"
        before = self._env.snapshot()
        answer = self._env.step(text)
        self._steps.append(_Step(text, before, answer))
        self._place = self._at = self._place + 1
        return answer
