from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from turntree.agents.episodes.record import Record
from turntree.agents.errors import RecordError


class StateTurns(NamedTuple):
    task: str  #: task id
    turns: list[tuple[int, ...]]  #: token ids of each turn from this state
    all_turns: int  #: turns with this index, in any state


def state_turns(records: Iterable[Record], *, task: str | None, turn: int) -> StateTurns:
    """Return the turns with index ``turn`` of one task that share the most frequent prompt.

    Args:
        task: Task id; ``None`` takes the first task.
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
