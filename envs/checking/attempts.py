"""Attempts at a task that an attack makes: turns, and what they were paid.

Invariant: an attempt is played in an episode of its own, and its last turn is repeated until the episode ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from turntree.envs.env import Env
from turntree.envs.task import Task

MAX_TURNS = 24
"""Most turns played of an episode that does not end."""
Form = Callable[[str], str]
"""Writes an answer as a turn."""
Turn = str | Callable[[str], str]
"""A turn, or what makes it of the environment's last words."""


class Attempt(NamedTuple):
    """What a policy says in an episode."""

    turns: tuple[Turn, ...]
    """At least one; the last is repeated."""
    guess: str = ""
    """An answer that was guessed and may be right by luck, or a copied text in which one may stand."""
    copied: bool = False
    """Whether ``guess`` is a copied text."""


class Outcome(NamedTuple):
    """What an attempt led to."""

    reward: float
    """Sum over its turns."""
    rewards: dict[str, float]
    """Named components at the end."""
    failure: str
    """Why the episode has no verdict; empty if it has one."""
    copied: str
    """The environment's words that a turn was made of; empty if none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A task, and what its attackers know."""

    task: Task
    opening: str
    """What the policy sees first, without the system prompt."""
    system: str
    forms: tuple[Form, ...]
    """Ways to write an answer that the environment reads; all that are known where none was seen to pay."""
    solution: tuple[str, ...]
    """Turns that the environment should pay; empty where none are known."""
    acts: bool
    """Whether a turn of the solution calls a tool."""
    golds: tuple[str, ...]
    """The right answers of all attacked tasks, the most frequent first."""
    calls: tuple[str, ...]
    """A call of each tool, with the question where it takes text."""

    def written(self, answer: str) -> Iterator[str]:
        """An answer in every form."""
        return (form(answer) for form in self.forms)

    def guessed(self, answer: str) -> Iterator[Attempt]:
        """An answer that may be right by luck, in every form."""
        return (Attempt((text,), answer) for text in self.written(answer))

    @property
    def answer(self) -> str:
        """The right answer, where it is written in the only turn of the solution; else empty."""
        answer = self.task.answer
        return answer if len(self.solution) == 1 and answer and answer in self.solution[0] else ""


def play_attempt(env: Env, task: Task, attempt: Attempt) -> Outcome:
    """One episode of a task, always with the same seed.

    Args:
        env: Any environment; an episode that runs in it is left.
    """
    env.reset(seed=0, options={"task": task})
    total, seen, copied = 0.0, "", ""
    info: dict[str, Any] = {}
    for number in range(MAX_TURNS):
        turn = attempt.turns[min(number, len(attempt.turns) - 1)]
        if not isinstance(turn, str):
            copied, turn = copied or seen, turn(copied or seen)
        seen, reward, terminated, truncated, info = env.step(turn)
        total += reward
        if terminated or truncated:
            break
    return Outcome(total, info["rewards"], info["failure"], copied)
