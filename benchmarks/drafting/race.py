"""A reader drafts while a writer commits: is every draft whole?"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from drafting.drafters import Setup, Turntree
from drafting.traces import Trace
from turntree.spec_tree import DraftBatch, UnknownTurn


def faults(batch: DraftBatch, *, rows: int, most: int, vocab: int, end_tokens: frozenset[int]) -> list[str]:
    """What is wrong with the shape of a draft; nothing, it is hoped."""
    offsets, parents, tokens = batch.offsets, batch.parents.astype(np.int64), batch.tokens.astype(np.int64)
    sizes = np.diff(offsets)
    whole = len(offsets) == rows + 1 and offsets[0] == 0 and offsets[-1] == len(tokens) and (sizes >= 0).all()
    columns = (parents, batch.depths, batch.probabilities)
    if not whole or any(len(column) != len(tokens) for column in columns):
        return ["rows do not cover the nodes"]
    if not len(tokens):
        return []
    row = np.repeat(np.arange(rows), sizes)
    within = np.arange(len(tokens)) - offsets[row]
    if ((parents < -1) | (parents >= within)).any():
        return ["a parent after its child"]
    inner = parents >= 0
    above = np.where(inner, parents + offsets[row], 0)
    at_root = np.where(inner, above, -1 - row)
    ends = np.isin(tokens, list(end_tokens))
    checks: dict[str, np.bool_ | bool] = {
        "more nodes than asked for": (sizes > most).any(),
        "siblings alike": len(np.unique(np.stack([at_root, tokens]), axis=1).T) != len(tokens),
        "a wrong depth": (batch.depths != np.where(inner, batch.depths[above] + 1, 1)).any(),
        "a token outside of the vocabulary": ((tokens < 0) | (tokens >= vocab)).any(),
        "a token after the end": (inner & ends[above]).any(),
        "no probability": ~((batch.probabilities >= 0) & (batch.probabilities <= 1)).all(),
    }
    return [name for name, wrong in checks.items() if wrong]


@dataclass(slots=True, kw_only=True)
class Race:
    """Drafting in one thread while another one commits."""

    drafts: int = 0
    """Calls of ``draft`` that gave a batch."""
    nodes: int = 0
    """Nodes in them."""
    ended: int = 0
    """Calls that met a turn that had just ended, and said so."""
    committed: int = 0
    """Tokens that the other thread committed meanwhile."""
    turns: int = 0
    """Turns that it ended meanwhile."""
    malformed: int = 0
    """Batches with a fault."""
    kinds: dict[str, int] = field(default_factory=dict)
    """Which faults, how often."""


def race(trace: Trace, setup: Setup, *, drafts: int, rows: int = 8) -> Race:
    """Draft for live turns ``drafts`` times while another thread commits to the same turns, ends and begins them."""
    rows = min(rows, len(trace.turns))
    drafter = Turntree(setup)
    found = Race()
    live: list[list[int]] = []
    stop, begun, failed = threading.Event(), threading.Event(), []

    def write() -> None:
        before: list[int] = []
        try:
            while True:
                for first in range(0, len(trace.turns) - rows + 1, rows):
                    turns = trace.turns[first : first + rows]
                    live[:] = [drafter.begin([turn.state for turn in turns], [turn.prompt for turn in turns])]
                    begun.set()
                    if before:
                        drafter.end(before)
                        found.turns += rows
                    before = live[0]
                    for at in range(0, min(96, max(len(turn.tokens) for turn in turns)), 3):
                        if stop.is_set():
                            return
                        said = [turn.tokens[at : at + 3].tolist() for turn in turns]
                        drafter.forest.commit(before, said)
                        found.committed += sum(map(len, said))
        except BaseException as error:
            failed.append(error)
            begun.set()
            raise

    writer = threading.Thread(target=write, name="writer")
    writer.start()
    begun.wait()
    try:
        while found.drafts < drafts and not failed:
            try:
                batch = drafter.draft(live[0], [])
            except UnknownTurn:
                found.ended += 1
                continue
            found.drafts += 1
            found.nodes += len(batch.tokens)
            wrong = faults(batch, rows=rows, most=setup.budget, vocab=trace.vocab, end_tokens=setup.end_tokens)
            found.malformed += bool(wrong)
            for kind in wrong:
                found.kinds[kind] = found.kinds.get(kind, 0) + 1
    finally:
        stop.set()
        writer.join()
    if failed:
        raise failed[0]
    return found
