"""Calls of the store of drafts in an engine's process, from the process that takes the requests.

How a call gets there is the engine's: a method of vLLM's workers, a change of
settings of SGLang's schedulers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turntree.agents.engines.state_wire import from_wire

if TYPE_CHECKING:
    from turntree.spec_tree import SpecForest


def carry_out(forest: SpecForest, method: str, args: Sequence[Any], *, first_rank: bool) -> None:
    """Do what a call asks. All ranks hold the same turns: the first one writes.

    Args:
        method: ``insert``, ``save`` or ``restore``.
        args: JSON values: states of ``state_wire.to_wire`` and the token ids of their turns, or a path.

    Raises:
        ValueError: If there is no such method, or a state cannot be read.
        ForestError: If a file is damaged.
        OSError: If it cannot be written or read.
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
