"""The base of the simulated APIs: a state that a task begins with and that calls change.

Invariant: ``state`` is the whole state that is judged; what a simulator keeps elsewhere is never compared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

from turntree.envs.errors import ToolError
from turntree.envs.tools.toolset import Toolset

MAX_AMOUNT = 1e12


class Simulator(Toolset):
    """The tools of one API, over its state."""

    initial: ClassVar[Mapping[str, Any]] = {}
    """Values of what a task's configuration leaves out."""

    def __init__(self) -> None:
        """An API of which nothing is known yet."""
        self.load({})

    def load(self, configuration: Mapping[str, Any]) -> None:
        """Begin with a task's configuration; keys that the API does not know are kept as they are."""
        self.state: dict[str, Any] = copied({**self.initial, **configuration})

    def fresh(self) -> Self:
        """The API of one episode, to be loaded."""
        return type(self)()


def copied(value: Any) -> Any:
    """A deep copy of a state, of JSON's types alone: several times as fast as ``copy.deepcopy``."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [copied(inner) for inner in value]
    return value


def found(records: Mapping[str, Any], key: object, what: str) -> Any:
    """A record by its key, which is a text in JSON.

    Raises:
        ToolError: If there is none.
    """
    if str(key) not in records:
        raise ToolError(f"there is no {what} {key}")
    return records[str(key)]


def one_of(value: str, choices: Collection[str], name: str) -> str:
    """An argument that has few values.

    Raises:
        ToolError: If it is none of them.
    """
    if value not in choices:
        raise ToolError(f"{name} is one of {', '.join(choices)}, got {value!r:.80}")
    return value


def positive(value: float, name: str) -> float:
    """An amount of money or of things.

    Raises:
        ToolError: If it is not positive, or beyond what any account holds.
    """
    if not 0 < value < MAX_AMOUNT:
        raise ToolError(f"{name} must be positive and below {MAX_AMOUNT:g}")
    return value
