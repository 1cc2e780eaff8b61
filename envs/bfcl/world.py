"""Run the APIs of one episode. Calls return the benchmark's own texts, and none hangs or reaches another episode.

Invariant: a call raises nothing. An API's exception becomes a result, as in the benchmark. Some calls are refused
before they reach the API: those with numbers of too many digits, with a folder tree too large to search, or with
arguments that are not JSON.
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

MAX_DIGITS = 1_000  #: highest precision that a call may ask for
MAX_BITS = 16_384  #: size of the largest integer that a power may produce; Python prints at most 4,300 digits
MAX_ENTRIES = 20_000
MAX_LEVELS = 50  #: depth of a folder tree; an entry counts once per path that reaches it
# These functions set mpmath's precision, this thread's decimal precision, and a global result.
_WRITE_SHARED_STATE = {"logarithm", "square_root", "get_outside_temperature_from_google"}
_GROW_OR_SEARCH = {"mkdir", "mv", "cp", "find", "du"}
_shared = Lock()


class World(Toolset):
    """Hold the running episode's own APIs, and the tools of all APIs, used in the episode or not."""

    def __init__(self) -> None:
        self.tools = tuple(all_api_tools().values())
        self.apis: dict[str, Any] = {}

    def begin(self, beginning: bytes) -> None:
        self.apis = pickle.loads(beginning)

    def states(self) -> dict[str, dict[str, Any]]:
        # The benchmark compares the public attributes of each API.
        return {
            name: {key: value for key, value in vars(api).items() if not key.startswith("_")}
            for name, api in self.apis.items()
        }

    def call(self, tool: ApiTool, arguments: Mapping[str, Any]) -> str:
        try:
            own = json.loads(json.dumps(arguments, allow_nan=False))  # a copy, because the API may keep and change it
            api = self.apis[tool.api]
            _refuse_endless(tool.name, own, api)
            if tool.name not in _WRITE_SHARED_STATE:
                return _written(getattr(api, tool.name)(**own))
            with _restored():
                return _written(getattr(api, tool.name)(**own))
        except Exception as error:
            return f"Error during execution: {error}"

    def fresh(self) -> Self:
        return type(self)()

    def __reduce__(self) -> Any:
        return type(self), (), {"apis": self.apis}


def beginning_of(task: Task) -> bytes:
    # Returns a pickle, so that every load is a separate copy that shares nothing with another episode.
    world, long_context = task.metadata["world"], task.metadata["long_context"]
    apis = {name: new_api(name, world.get(name, {}), long_context=long_context) for name in task.metadata["apis"]}
    return pickle.dumps(apis)


@contextmanager
def _restored() -> Iterator[None]:
    # Only one thread at a time may run a call that writes process-wide state. The precisions of mpmath and decimal are
    # restored afterwards.
    with _shared, mpmath.workdps(mpmath.mp.dps), decimal.localcontext():
        yield


def _written(result: Any) -> str:
    # The benchmark writes a mapping as JSON if possible, and any other result with Python's ``str``.
    if isinstance(result, dict):
        try:
            return json.dumps(result, allow_nan=False)
        except TypeError:
            pass
    return str(result)


def _refuse_endless(name: str, arguments: Mapping[str, Any], api: Any) -> None:
    # Refuses calls that would take minutes, or would create a state on which later calls take minutes.
    for argument in ("precision", "decimal_places"):
        value = arguments.get(argument, 0)
        if isinstance(value, int | float) and abs(value) > MAX_DIGITS:
            raise ValueError(f"{name}: {argument} is at most {MAX_DIGITS}")
    if name == "logarithm" and not all(isinstance(value, int | float) for value in arguments.values()):
        raise TypeError("logarithm: all arguments are numbers")  # mpmath also accepts texts, such as "1e1000000000"
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
