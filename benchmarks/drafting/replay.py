"""Replay turns against a drafter, as an engine would have played them.

The recorded turn is the target: a draft is accepted as far as it agrees, and each verify step emits one more token.
Only ``draft`` and ``commit`` are timed; a drafter's work on the prompt of a new request is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import numpy as np

from drafting.drafters import Drafter, Tokens
from drafting.traces import Turn

Watch = Callable[[Any, list[list[int]]], None]  #: called with the drafts and the accepted nodes of each row


@dataclass(slots=True, kw_only=True)
class Clock:
    wall: float = 0.0
    cpu: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.cpu += time.process_time() - cpu
        self.wall += time.perf_counter() - wall


@dataclass(slots=True, kw_only=True)
class Replay:
    """Counters of a replay; a step is one row's part of an engine step."""

    steps: int = 0  #: verify steps, one per live row
    rounds: int = 0  #: engine steps, one for all rows
    emitted: int = 0
    drafted: int = 0
    draft: Clock = field(default_factory=Clock)
    commit: Clock = field(default_factory=Clock)

    @property
    def tokens_per_forward_pass(self) -> float:
        return self.emitted / self.steps

    @property
    def drafted_per_forward_pass(self) -> float:
        return self.drafted / self.steps


@dataclass(slots=True)
class _Live:
    handle: int
    sequence: Tokens
    target: list[int]
    prompt: int
    rest: list[Turn]
    done: int = 0

    @property
    def ended(self) -> bool:
        return self.done == len(self.target)

    def context(self) -> Tokens:
        return self.sequence[: self.prompt + self.done]


def accepted(tokens: Sequence[int], parents: Sequence[int], target: Sequence[int], start: int = 0) -> list[int]:
    """Return the nodes along which a drafted tree agrees with ``target[start:]``, from the root down.

    Parents come before children and siblings are distinct, so one pass finds the path.
    """
    path: list[int] = []
    at = -1
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if parent == at:
            if start == len(target):
                break
            if token == target[start]:
                path.append(node)
                at = node
                start += 1
    return path


def replay(
    drafter: Drafter,
    turns: Iterable[Turn],
    *,
    batch: int,
    full: bool = False,
    most_steps: int | None = None,
    dialogues: bool = False,
    watch: Watch | None = None,
) -> Replay:
    """Replay ``turns``, ``batch`` at a time.

    Args:
        drafter: The drafter, which keeps what it has learnt.
        turns: The targets, in order.
        batch: Live turns at most.
        full: Stop as soon as fewer than ``batch`` are left (for timings at one batch size).
        most_steps: Stop after this many steps.
        dialogues: A turn begins when the previous turn of its dialogue has ended, as in a rollout; else at once.
        watch: Receives every draft and its accepted nodes.
    """
    waiting = _dialogues(turns) if dialogues else ([turn] for turn in turns)
    live: list[_Live] = []
    going_on: list[list[Turn]] = []
    counts = Replay()
    while True:
        fresh = [*going_on, *islice(waiting, batch - len(live) - len(going_on))]
        if fresh:
            handles = drafter.begin([turn.state for turn, *_ in fresh], [turn.prompt for turn, *_ in fresh])
            live += [
                _Live(handle, np.concatenate([turn.prompt, turn.tokens]), turn.tokens.tolist(), len(turn.prompt), rest)
                for handle, (turn, *rest) in zip(handles, fresh, strict=True)
            ]
        if not live or (full and len(live) < batch) or (most_steps is not None and counts.steps >= most_steps):
            return counts
        rows, live = live, _step(drafter, live, counts, watch)
        going_on = [row.rest for row in rows if row.ended and row.rest]


def _dialogues(turns: Iterable[Turn]) -> Iterator[list[Turn]]:
    for _, dialogue in groupby(turns, key=lambda turn: (turn.state.env, turn.start, turn.sample)):
        yield list(dialogue)


def _step(drafter: Drafter, live: list[_Live], counts: Replay, watch: Watch | None) -> list[_Live]:
    handles = [row.handle for row in live]
    contexts = [row.context() for row in live]
    with counts.draft.running():
        drafted = drafter.draft(handles, contexts)
    rows = drafter.rows(drafted)
    paths = [accepted(*row, turn.target, turn.done) for row, turn in zip(rows, live, strict=True)]
    if watch is not None:
        watch(drafted, paths)
    said = []
    for row, path in zip(live, paths, strict=True):
        said.append(row.target[row.done : row.done + len(path) + 1])
        row.done += len(said[-1])
    contexts = [row.context() for row in live]
    with counts.commit.running():
        drafter.commit(handles, said, contexts)
    ended = [row.handle for row in live if row.ended]
    if ended:
        drafter.end(ended)
    counts.steps += len(live)
    counts.rounds += 1
    counts.emitted += sum(map(len, said))
    counts.drafted += sum(len(tokens) for tokens, _ in rows)
    return [row for row in live if not row.ended]
