"""The attempts of an attack: turns and their rewards. Each is a separate episode; its last turn is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from turntree.envs.env import Env
from turntree.envs.task import Task

MAX_TURNS = 24  #: turns played of an episode that does not end
Form = Callable[[str], str]  #: writes an answer as a turn
Turn = str | Callable[[str], str]  #: a turn, or a function that makes it from the environment's last message


class Attempt(NamedTuple):
    """The turns of a policy in one episode."""

    turns: tuple[Turn, ...]  #: at least one; the last is repeated
    guess: str = ""  #: an answer that may be right by luck, or a copied text that may contain one
    copied: bool = False  #: whether ``guess`` is a copied text


class Outcome(NamedTuple):
    reward: float  #: sum over the turns
    rewards: dict[str, float]  #: named components at the end
    failure: str  #: the reason why the episode has no verdict; empty if it has one
    copied: str  #: the environment's message from which a turn was made; empty if there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A task, and what its attackers know about it."""

    task: Task
    opening: str  #: the first messages, without the system prompt
    system: str
    #: ways to write an answer that the environment pays; all known ways if none was seen to pay
    forms: tuple[Form, ...]
    solution: tuple[str, ...]  #: turns that the environment should pay; empty if unknown
    acts: bool  #: whether a turn of the solution calls a tool
    golds: tuple[str, ...]  #: the right answers of all attacked tasks, the most frequent first
    calls: tuple[str, ...]  #: one call of each tool; string arguments are the question

    def written(self, answer: str) -> Iterator[str]:
        return (form(answer) for form in self.forms)

    def guessed(self, answer: str) -> Iterator[Attempt]:
        return (Attempt((text,), answer) for text in self.written(answer))

    @property
    def answer(self) -> str:
        """The right answer, if it occurs in the only turn of the solution; else empty."""
        answer = self.task.answer
        return answer if len(self.solution) == 1 and answer and answer in self.solution[0] else ""


def play_attempt(env: Env, task: Task, attempt: Attempt) -> Outcome:
    """Play one episode of a task, always with the same seed; the running episode is abandoned."""
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
