"""The turns of a run that began at one dialogue state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from turntree.agents.episodes.record import Record
from turntree.agents.errors import RecordError


class StateTurns(NamedTuple):
    """The sampled turns of one state."""

    task: str
    """Id of the task."""
    turns: list[tuple[int, ...]]
    """Token ids of each turn that began there."""
    all_turns: int
    """Number of turns with that index, whatever their state."""


def state_turns(records: Iterable[Record], *, task: str | None, turn: int) -> StateTurns:
    """Turns number ``turn`` of one task that share the most frequent prompt.

    Args:
        task: Id of the task; ``None`` takes the first one's.
        turn: From 0.

    Raises:
        RecordError: If there is no such task or turn.
    """
    by_prompt: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    seen: dict[str, None] = {}
    for record in records:
        of = record.episode.task.id if record.episode.task else ""
        seen[of] = None
        if task is None:
            task = of
        if of == task and turn < len(record.episode.turns):
            turn_here = record.episode.turns[turn]
            by_prompt[turn_here.prompt_ids].append(turn_here.completion.token_ids)
    if task not in seen:
        raise RecordError(f"no episode of task {task!r}; there are, for example, {', '.join(list(seen)[:3])}")
    if not by_prompt:
        raise RecordError(f"no episode of task {task!r} has a turn {turn}; turns are counted from 0")
    turns = max(by_prompt.values(), key=len)
    if not any(turns):
        raise RecordError(
            f"of task {task!r} only texts are recorded, and a tree is made of tokens; `turntree view` shows texts"
        )
    return StateTurns(task, turns, sum(map(len, by_prompt.values())))
