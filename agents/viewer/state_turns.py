from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from turntree.agents.episodes.record import Record
from turntree.agents.errors import RecordError
from turntree.spec_tree import TreeNode


class StateTurns(NamedTuple):
    task: str  #: task id
    turns: list[tuple[int, ...]]  #: token ids of each turn that was sampled from this state (prompt)
    all_turns: int  #: number of turns with this index, in any state


def state_turns(records: Iterable[Record], *, task: str | None, turn: int) -> StateTurns:
    """Return the turns with index ``turn`` of one task that share the most frequent prompt.

    Args:
        task: Task id; ``None`` takes the first task.
        turn: From 0.
    """
    by_prompt: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    seen: dict[str, None] = {}
    for record in records:
        task_id = record.episode.task.id if record.episode.task else ""
        seen[task_id] = None
        if task is None:
            task = task_id
        if task_id == task and turn < len(record.episode.turns):
            state_turn = record.episode.turns[turn]
            by_prompt[state_turn.prompt_ids].append(state_turn.completion.token_ids)
    if task not in seen:
        raise RecordError(f"no episode of task {task!r}; recorded tasks are, for example, {', '.join(list(seen)[:3])}")
    if not by_prompt:
        raise RecordError(f"no episode of task {task!r} has a turn {turn}; turns are counted from 0")
    turns = max(by_prompt.values(), key=len)
    if not any(turns):
        raise RecordError(
            f"task {task!r} was recorded as text only, and a tree needs tokens; `turntree view` shows text"
        )
    return StateTurns(task, turns, sum(map(len, by_prompt.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A path through the prefix tree of turns, up to the next fork."""

    text: str
    count: int  #: turns that took this path
    share: float  #: fraction of the turns at the fork before it, in [0, 1]
    children: tuple[Branch, ...]  #: most frequent first
    hidden: int = 0  #: number of children that are not shown


def branches(root: TreeNode, decode: Callable[[int], str], *, widest: int = 12) -> Branch:
    return _branch(root, decode, widest, before=root.count)


def _branch(node: TreeNode, decode: Callable[[int], str], widest: int, before: int) -> Branch:
    count = node.count
    text = "" if node.token < 0 else decode(node.token)
    while len(node.children) == 1 and node.children[0].count == count:
        node = node.children[0]
        text += decode(node.token)
    return Branch(
        text=text,
        count=count,
        share=count / before if before else 0.0,
        children=tuple(_branch(child, decode, widest, before=count) for child in node.children[:widest]),
        hidden=max(0, len(node.children) - widest),
    )
