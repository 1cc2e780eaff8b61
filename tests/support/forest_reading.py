"""Another process that reads a shared forest on request, and what must hold of every draft it gets."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from turntree.spec_tree import DialogueState, DraftBatch, ForestReader

END = 9
FIRST, LAST = 1000, 1999
"""Token ids that are ever inserted, besides ``END``."""
ROWS = 16


def state(index: int) -> DialogueState:
    return DialogueState.from_tokens([5, index], task=f"task {index % 3}", tools=f"{index % 2}", env="env")


def complaints(batch: DraftBatch, last: list[int], room: int) -> list[str]:
    """What is wrong with drafts after the tokens ``last``, one a row (-1 before the first)."""
    wrong = []
    for row, (start, stop) in enumerate(zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True)):
        tokens, parents = batch.tokens[start:stop], batch.parents[start:stop]
        depths, chances = batch.depths[start:stop], batch.probabilities[start:stop]
        if not ((parents >= -1) & (parents < np.arange(len(parents)))).all():
            wrong.append("a parent after its child")
            continue
        above = np.where(parents < 0, last[row], tokens[parents])
        if len({*zip(parents.tolist(), tokens.tolist(), strict=True)}) < len(tokens):
            wrong.append("siblings alike")
        if not (depths == np.where(parents < 0, 0, depths[parents]) + 1).all() or depths.max(initial=0) > room:
            wrong.append("a wrong depth")
        if not ((tokens == END) | ((tokens >= FIRST) & (tokens <= LAST))).all():
            wrong.append("a token that was never inserted")
        if (above == END).any():
            wrong.append("a token after the end")
        if not ((chances > 0) & (chances <= np.where(parents < 0, 1.0, chances[parents]))).all():
            wrong.append("a child more probable than its parent")
    return wrong


def keep_drafting(reader: ForestReader, drafts: int) -> tuple[list[str], int, bool]:
    """Draft so many times while somebody writes; returns complaints, nodes, and whether the writer had closed."""
    chance = np.random.default_rng(0)
    wrong: list[str] = []
    nodes, closed = 0, reader.writer_closed
    handles = reader.begin([state(row % 6) for row in range(ROWS)])
    last = [-1] * ROWS
    for step in range(drafts // ROWS):
        batch = reader.draft(handles, max_nodes=12, room=[6] * ROWS)
        wrong += complaints(batch, last, 6)
        nodes += len(batch.tokens)
        said = []
        for row, (start, stop) in enumerate(zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True)):
            likely = start < stop and chance.random() < 0.8
            said.append([int(batch.tokens[start])] if likely else [5000 + row])
            last[row] = said[-1][-1]
        reader.advance(handles, said)
        if step % 12 == 11:
            reader.end(handles)
            handles = reader.begin([state((row + step) % 6) for row in range(ROWS)])
            last = [-1] * ROWS
    reader.end(handles)
    return wrong[:10], nodes, closed


def draft(reader: ForestReader, at: int, said: list[int]) -> list[list[float]]:
    """What is drafted for a turn that has said ``said``, as lists."""
    handles = reader.begin([state(at)])
    reader.advance(handles, [said])
    batch = reader.draft(handles, max_nodes=16, room=[8])
    reader.end(handles)
    return [getattr(batch, name).tolist() for name in DraftBatch.__slots__]


def serve(pipe: Connection) -> None:
    """Attach to the forests that are named, and do what is asked with each."""
    readers: dict[str, ForestReader] = {}
    while (request := pipe.recv()) is not None:
        name, ask, *args = request
        try:
            if name not in readers:
                readers[name] = ForestReader.attach(name)
            answer: Any = ask(readers[name], *args)
        except Exception as error:
            answer = error
        pipe.send(answer)
    for reader in readers.values():
        reader.close()


def drop(reader: ForestReader) -> None:
    reader.close()


def writer_closed(reader: ForestReader) -> bool:
    return reader.writer_closed


class OtherProcess:
    """Asks a process that runs ``serve``."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def start(self, name: str, ask: Callable[..., Any], *args: Any) -> None:
        self._pipe.send((name, ask, *args))

    def done(self) -> bool:
        return self._pipe.poll()

    def answer(self) -> Any:
        assert self._pipe.poll(120), "the other process does not answer"
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ask(self, name: str, ask: Callable[..., Any], *args: Any) -> Any:
        self.start(name, ask, *args)
        return self.answer()


@contextmanager
def other_process() -> Iterator[OtherProcess]:
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield OtherProcess(mine)
        mine.send(None)
    finally:
        process.join(20)
        if process.is_alive():
            process.kill()
