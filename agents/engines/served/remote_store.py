"""An engine's draft store, which lives in the engine's processes, called from the client's process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turntree.agents.engines.request_wire import from_wire, to_wire

if TYPE_CHECKING:
    from turntree.spec_tree import DialogueState, SpecForest


class RemoteStore:
    """The draft store as the client's process sees it.

    Args:
        call: Runs ``insert``, ``save`` or ``restore`` of the store in each engine process: through a method of vLLM's
            workers, or through a settings request to SGLang's schedulers. Arguments are JSON values.
    """

    def __init__(self, call: Callable[..., Awaitable[None]]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._in_call = asyncio.Lock()
        self._inserting: set[asyncio.Task[None]] = set()

    def insert(self, state: DialogueState, tokens: Sequence[int]) -> None:
        """Add a finished turn in the background."""
        task = self._loop.create_task(self._in_turn("insert", [to_wire(state)], [list(map(int, tokens))]))
        self._inserting.add(task)
        task.add_done_callback(self._inserting.discard)

    def insert_all(self, states: Sequence[DialogueState], turns: Sequence[Any]) -> None:
        """Add finished turns. Blocks, so do not call it on the event loop's thread."""
        self._wait("insert", [to_wire(state) for state in states], [list(map(int, turn)) for turn in turns])

    def save(self, path: Path) -> None:
        """Write all finished turns to a file. Blocks, so do not call it on the event loop's thread."""
        self._wait("save", str(path))

    def restore(self, path: Path) -> None:
        """Replace the store's turns by those of a file. Blocks, so do not call it on the event loop's thread."""
        self._wait("restore", str(path))

    def _wait(self, method: str, *args: Any) -> None:
        asyncio.run_coroutine_threadsafe(self._in_turn(method, *args), self._loop).result()

    async def _in_turn(self, method: str, *args: Any) -> None:
        # One call at a time: a file must contain all earlier turns, and SGLang 0.5.12 fails an assertion if three
        # calls overlap.
        async with self._in_call:
            await self._call(method, *args)


def carry_out(forest: SpecForest, method: str, args: Sequence[Any], *, first_rank: bool) -> None:
    """Carry out a call in an engine process. All ranks hold the same turns, so only the first rank writes.

    Args:
        method: ``insert``, ``save`` or ``restore``.
        args: JSON values: states written by ``to_wire`` and the token ids of their turns, or a path.

    Raises:
        ValueError: If there is no such method, or a state cannot be read.
        ForestError: If a file is damaged.
        OSError: If a file cannot be written or read.
    """
    match method, args:
        case "insert", [states, turns]:
            forest.insert_all([from_wire(state) for state in states], turns)
        case "save", [path]:
            if first_rank:
                forest.save(path)
        case "restore", [path]:
            forest.restore(path)
        case _:
            raise ValueError(f"expected insert, save or restore of the store with its arguments, got {method!r}")
