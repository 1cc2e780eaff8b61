"""Tools over the Model Context Protocol: an MCP server's tools as turntree tools, and the reverse."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from turntree.envs.bridges.missing import library
from turntree.envs.context import Context
from turntree.envs.errors import ToolError
from turntree.envs.tools.tool import Tool
from turntree.envs.tools.toolset import Toolset


class McpTools(Toolset):
    """The tools of an MCP server; put it into an environment's ``toolsets``.

    Every episode opens its own connection at its first call, and so has its own server state where the server
    keeps it by connection. ``server`` is what ``mcp.Client`` takes: parameters of a command, a URL, a server object.
    """

    def __init__(self, server: Any, *, seconds: float = 30.0) -> None:
        """Ask the server for its tools.

        Args:
            server: The server to connect to.
            seconds: Deadline of connecting and of each call.

        Raises:
            MissingExtra: If ``mcp`` is not installed.
        """
        library("mcp", "mcp")
        self._server, self._seconds = server, seconds
        self._connection: _Connection | None = None
        with _Connection(server, seconds) as connection:
            listed = connection.ask(lambda client: client.list_tools()).tools
        self.tools = tuple(McpTool(entry) for entry in listed)

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool of the server.

        Raises:
            ToolError: If the server rejects the call.
        """
        result = self._connected().ask(lambda client: client.call_tool(name, arguments))
        text = "\n".join(part.text for part in result.content if getattr(part, "text", None) is not None)
        if getattr(result, "is_error", False) or getattr(result, "isError", False):
            raise ToolError(text)
        return text

    def within(self, function: Callable[[], Any]) -> Any:
        """What a coroutine function returns, run in the event loop of this episode's connection."""
        return self._connected().ask(lambda client: function())

    def fresh(self) -> McpTools:
        """A copy of the tools with its own connection."""
        copy = object.__new__(type(self))
        vars(copy).update(vars(self) | {"_connection": None})
        return copy

    def close(self) -> None:
        """Disconnect."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.__exit__()

    def _connected(self) -> _Connection:
        self._connection = self._connection or _Connection(self._server, self._seconds).__enter__()
        return self._connection

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_connection": None}


class Caller(Protocol):
    """Whoever passes calls on to a server: ``McpTools``, or an environment."""

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool of the server."""
        ...


class McpTool(Tool):
    """A tool described by a server."""

    def __init__(self, entry: Any) -> None:
        schema = dict(getattr(entry, "input_schema", None) or getattr(entry, "inputSchema", None) or {})
        parameters = {"type": "object", "properties": {}} | schema
        function = {"name": entry.name, "description": entry.description or "", "parameters": parameters}
        self.schema = {"type": "function", "function": function}
        self.is_method, self.deterministic, self._context = True, False, None

    def run(self, arguments: Any, *, owner: object | None = None, context: Context | None = None) -> str:
        """Call the server, which checks the arguments itself."""
        return cast(Caller, owner).call(self.name, dict(arguments))

    def renamed(self, name: str) -> McpTool:
        """The same tool under another name."""
        tool = copy.copy(self)
        tool.schema = {"type": "function", "function": {**self.schema["function"], "name": name}}
        return tool

    def __reduce__(self) -> Any:
        return object.__new__, (type(self),), vars(self)


def serve(tools: Sequence[Tool], *, name: str = "turntree") -> Any:
    """An MCP server that offers ``tools``; run it with ``mcp.server.stdio`` or over HTTP.

    Args:
        tools: Functions decorated with ``@tool`` that need no ``Context``.
        name: Name of the server.
    """
    types, server = library("mcp.types", "mcp"), library("mcp.server.lowlevel", "mcp")
    by_name = {tool.name: tool for tool in tools}

    async def list_tools(context: Any, params: Any) -> Any:
        described = [tool.schema["function"] for tool in tools]
        return types.ListToolsResult(
            tools=[
                types.Tool(name=d["name"], description=d["description"], inputSchema=d["parameters"]) for d in described
            ]
        )

    async def call_tool(context: Any, params: Any) -> Any:
        try:
            if params.name not in by_name:
                raise ToolError(f"there is no tool {params.name!r}; the tools are: {', '.join(by_name)}")
            text, wrong = await asyncio.to_thread(by_name[params.name].run, params.arguments or {}), False
        except ToolError as error:
            text, wrong = str(error), True
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], isError=wrong)

    return server.Server(name, on_list_tools=list_tools, on_call_tool=call_tool)


class _Connection:
    """A client in an event loop of its own, for callers that are not asynchronous."""

    def __init__(self, server: Any, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self._loop = asyncio.new_event_loop()
        self._ready: asyncio.Future[Any] = self._loop.create_future()
        self._leave = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._live(),), daemon=True)

    def __enter__(self) -> _Connection:
        self._thread.start()
        self.ask(lambda client: asyncio.sleep(0))
        return self

    def __exit__(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(timeout=self._seconds)

    def ask(self, question: Any) -> Any:
        async def answer() -> Any:
            return await question(await asyncio.shield(self._ready))

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(timeout=self._seconds)

    async def _live(self) -> None:
        try:
            async with library("mcp", "mcp").Client(self._server) as client:
                self._ready.set_result(client)
                await self._leave.wait()
        except Exception as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)
            await self._leave.wait()
