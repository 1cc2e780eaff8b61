from __future__ import annotations

import copy
import functools
import importlib.metadata
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

from turntree.envs.data.rows import file_rows
from turntree.envs.errors import MissingExtra, pip_install
from turntree.envs.task import Context
from turntree.envs.tools.tool import Tool

# The package pins old versions of numpy and other libraries for its model handlers, which turntree does not use.
PACKAGE = "bfcl-eval==2026.3.23"
#: name of an API in the tasks, which is also its class name -> name of its module and of its file of tool descriptions
APIS: Mapping[str, str] = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
logger = logging.getLogger(__name__)
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


class Caller(Protocol):
    def call(self, tool: ApiTool, arguments: Mapping[str, Any]) -> str:
        """Call a function of an API."""


class ApiTool(Tool):
    """Wrap a function of an API, with the description from BFCL's files; the API itself checks the arguments."""

    is_method = True

    def __init__(self, api: str, document: Mapping[str, Any]) -> None:
        self.api = api
        function = {key: document[key] for key in ("name", "description")}
        self.schema = {
            "type": "function",
            "function": {**function, "parameters": _converted(document["parameters"])},
        }

    def run(self, arguments: Mapping[str, Any], *, owner: object | None = None, context: Context | None = None) -> str:
        return cast(Caller, owner).call(self, arguments)

    @property
    def function(self) -> Callable[..., Any]:  # type: ignore[override]  # looked up when it is asked for
        # BFCL's description becomes the docstring. Its arguments may be in another order than the method's.
        method = getattr(_api_class(self.api), self.name)

        @functools.wraps(method)
        def documented(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        arguments = [f"    {name}: {' '.join(kind['description'].split())}" for name, kind in self.properties.items()]
        documented.__doc__ = "\n".join([self.schema["function"]["description"], "", "Args:", *arguments])
        return documented

    def __reduce__(self) -> Any:
        return _tool, (self.name,)


def package_data() -> Path:
    return Path(str(_module("bfcl_eval").__file__)).parent / "data"


def new_api(name: str, configuration: Mapping[str, Any], *, long_context: bool) -> Any:
    """Create an API in the state in which a task begins.

    The state may share objects with the package's own data. With ``long_context`` the package adds much more data than
    ``configuration`` has.
    """
    api = _api_class(name)()
    if hasattr(api, "_load_scenario"):  # one of the APIs has no state
        api._load_scenario(copy.deepcopy(dict(configuration)), long_context=long_context)
    return api


@functools.lru_cache(maxsize=1)
def all_api_tools() -> Mapping[str, ApiTool]:
    """Return the tools of all APIs by name, and warn if the installed package is not ``PACKAGE``.

    Raises:
        MissingExtra: If the package is not installed.
    """
    folder = package_data() / "multi_turn_func_doc"
    name, _, version = PACKAGE.partition("==")
    found = next((one.version for one in importlib.metadata.distributions(name=name)), version)
    if found != version:
        text = "%s %s is installed; scores may differ from those of %s, as results are compared letter for letter"
        logger.warning(text, name, found, version)
    rows = ((api, row) for api, file in APIS.items() for row in file_rows(folder / f"{file}.json").read())
    return {row.text("name"): ApiTool(api, row.fields) for api, row in rows}


@functools.lru_cache(maxsize=4096)
def tools_of(apis: tuple[str, ...], withheld: frozenset[str]) -> tuple[Tool, ...]:
    tools = (tool for api in apis for tool in all_api_tools().values() if tool.api == api)
    return tuple(tool for tool in tools if tool.name not in withheld)


def written(tools: Iterable[Tool]) -> str:
    return json.dumps([tool.schema for tool in tools])


def _tool(name: str) -> ApiTool:
    return all_api_tools()[name]


def _api_class(name: str) -> Any:
    return getattr(_module(f"bfcl_eval.eval_checker.multi_turn_eval.func_source_code.{APIS[name]}"), name)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        command = pip_install(f"--no-deps {PACKAGE}")
        raise MissingExtra(f"BFCL needs the benchmark's own package ({error}); install it with: {command}") from error


def _converted(schema: Any) -> Any:
    # BFCL's descriptions use Python's type names; a JSON schema needs JSON's type names.
    if isinstance(schema, list):
        return [_converted(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {key: _converted(value) for key, value in schema.items()}
    kind = converted.get("type")
    return converted | ({"type": _JSON_TYPES.get(kind, kind)} if isinstance(kind, str) else {})
