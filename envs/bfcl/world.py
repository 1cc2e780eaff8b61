"""The APIs of one episode: calls are answered in the benchmark's words, and none hangs or reaches another episode.

Invariant: a call raises nothing. What an API raises is a result, as in the benchmark, and so is what is refused before
the API is called: numbers with too many digits, trees of folders that no search would come to the end of, and what is
no JSON.
"""

from __future__ import annotations

import decimal
import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Self

import mpmath

from turntree.envs.bfcl.apis import ApiTool, all_api_tools, new_api
from turntree.envs.task import Task
from turntree.envs.tools.toolset import Toolset

MAX_DIGITS = 1_000
"""Highest precision that a call may ask for."""
MAX_BITS = 16_384
"""Size of the largest whole number that a power may become; Python writes none of more than 4,300 digits."""
MAX_ENTRIES = 20_000
MAX_LEVELS = 50
"""Bounds of a tree of folders; an entry counts as often as it is seen in it."""
_WRITE_SHARED_STATE = {"logarithm", "square_root", "get_outside_temperature_from_google"}
"""They set mpmath's precision, that of ``decimal`` in this thread, and a global that is their result."""
_GROW_OR_SEARCH = {"mkdir", "mv", "cp", "find", "du"}
_shared = Lock()


class World(Toolset):
    """The APIs of one episode, with the tools of all that there are."""

    def __init__(self) -> None:
        """A world before its task has begun."""
        self.tools = tuple(all_api_tools().values())
        self.apis: dict[str, Any] = {}

    def begin(self, beginning: bytes) -> None:
        """Take the APIs in the states with which a task begins, as ``beginning_of`` has them."""
        self.apis = pickle.loads(beginning)

    def states(self) -> dict[str, dict[str, Any]]:
        """What is judged of each API: its public attributes, as in the benchmark."""
        return {
            name: {key: value for key, value in vars(api).items() if not key.startswith("_")}
            for name, api in self.apis.items()
        }

    def call(self, tool: ApiTool, arguments: Mapping[str, Any]) -> str:
        """The result of a call, or the error, as the benchmark writes them."""
        try:
            own = json.loads(json.dumps(arguments, allow_nan=False))  # the API may keep and change them
            api = self.apis[tool.api]
            _refuse_endless(tool.name, own, api)
            if tool.name not in _WRITE_SHARED_STATE:
                return _written(getattr(api, tool.name)(**own))
            with _restored():
                return _written(getattr(api, tool.name)(**own))
        except Exception as error:
            return f"Error during execution: {error}"

    def fresh(self) -> Self:
        """The world of one episode, to be begun."""
        return type(self)()

    def __reduce__(self) -> Any:
        return type(self), (), {"apis": self.apis}


def beginning_of(task: Task) -> bytes:
    """The APIs of a task in the states with which it begins; each ``loads`` of them shares nothing with another."""
    world, long_context = task.metadata["world"], task.metadata["long_context"]
    apis = {name: new_api(name, world.get(name, {}), long_context=long_context) for name in task.metadata["apis"]}
    return pickle.dumps(apis)


@contextmanager
def _restored() -> Iterator[None]:
    """Nobody else of this process in a call that writes what all share; both precisions are as before afterwards."""
    with _shared, mpmath.workdps(mpmath.mp.dps), decimal.localcontext():
        yield


def _written(result: Any) -> str:
    """A result as text: in the benchmark a mapping is JSON if it can be, and all else as Python prints it."""
    if isinstance(result, dict):
        try:
            return json.dumps(result, allow_nan=False)
        except TypeError:
            pass
    return str(result)


def _refuse_endless(name: str, arguments: Mapping[str, Any], api: Any) -> None:
    """Refuse a call that would take minutes, or make a state that one would take minutes over."""
    for argument in ("precision", "decimal_places"):
        value = arguments.get(argument, 0)
        if isinstance(value, int | float) and abs(value) > MAX_DIGITS:
            raise ValueError(f"{name}: {argument} is at most {MAX_DIGITS}")
    if name == "logarithm" and not all(isinstance(value, int | float) for value in arguments.values()):
        raise TypeError("logarithm: all arguments are numbers")  # mpmath reads texts such as 1e1000000000
    if name == "power":
        base, exponent = arguments.get("base"), arguments.get("exponent")
        if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_BITS:
            raise OverflowError(f"power: the result has more than {MAX_BITS} bits")
    if name in _GROW_OR_SEARCH:
        _refuse_vast(api.root)
        _refuse_vast(api._current_dir)


def _refuse_vast(root: Any) -> None:
    waiting, entries = [(root, 0)], 0
    while waiting:
        folder, level = waiting.pop()
        entries += len(folder.contents)
        if entries > MAX_ENTRIES or level > MAX_LEVELS:
            raise ValueError(f"there are more than {MAX_ENTRIES} entries or {MAX_LEVELS} levels of folders")
        waiting += [(item, level + 1) for item in folder.contents.values() if hasattr(item, "contents")]
