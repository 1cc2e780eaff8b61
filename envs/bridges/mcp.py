"""The Model Context Protocol: an MCP server's tools as turntree tools, and turntree tools as an MCP server."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from turntree.envs.bridges.libraries import library
from turntree.envs.errors import ToolError
from turntree.envs.task import Context
from turntree.envs.tools.tool import Tool
from turntree.envs.tools.toolset import Toolset

_INVALID_PARAMS = -32602  #: JSON-RPC's code for a call that does not match the tool


class McpTools(Toolset):
    """The tools of an MCP server: put it into an environment's ``toolsets``.

    Every episode opens its own connection at its first call, so a server with state per connection has separate state
    for every episode. If the server rejects a call, the policy gets the error. If the server is gone or does not answer
    in time, this counts as an infrastructure failure.
    """

    def __init__(self, server: Any, *, seconds: float = 30.0) -> None:
        """Ask the server for its tools.

        Args:
            server: ``mcp.StdioServerParameters`` of a command, or an argument of ``mcp.Client``: a URL or a server
                object.
            seconds: Deadline of connecting and of each call.

        Raises:
            MissingExtra: If ``mcp`` is not installed.
            TimeoutError: If the server does not answer in time.
        """
        library("mcp", "mcp")
        self._server = server
        self.seconds = seconds
        self._connection: _Connection | None = None
        with _Connection(server, seconds) as connection:
            listed = connection.ask(_all_tools)
        self.tools = tuple(McpTool(entry) for entry in listed)

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool of the server.

        Raises:
            ToolError: If the server rejects the call.
            TimeoutError: If the server does not answer in time.
        """
        try:
            result = self._connected().ask(lambda client: client.call_tool(name, arguments))
        except library("mcp", "mcp").MCPError as error:
            if error.code != _INVALID_PARAMS:
                raise
            raise ToolError(str(error)) from error
        text = "\n".join(getattr(part, "text", None) or f"[{part.type}]" for part in result.content or ())
        # Versions of mcp differ in the names of these attributes.
        structured = getattr(result, "structured_content", getattr(result, "structuredContent", None))
        # The protocol asks servers to send the same value as text, but not all do.
        if not text and structured is not None:
            text = json.dumps(structured, ensure_ascii=False)
        if getattr(result, "is_error", False) or getattr(result, "isError", False):
            raise ToolError(text)
        return text

    def within(self, function: Callable[[], Any]) -> Any:
        """Run a coroutine function in the event loop of this episode's connection and return its result."""
        return self._connected().ask(lambda client: function())

    def fresh(self) -> McpTools:
        copy = object.__new__(type(self))
        vars(copy).update(vars(self) | {"_connection": None})
        return copy

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.__exit__()

    def _connected(self) -> _Connection:
        self._connection = self._connection or _Connection(self._server, self.seconds).__enter__()
        return self._connection

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_connection": None}


class Caller(Protocol):
    """Passes calls on to a server: ``McpTools``, or an environment."""

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool of the server."""


class McpTool(Tool):
    """A tool described by a server."""

    def __init__(self, entry: Any) -> None:
        schema = dict(getattr(entry, "input_schema", None) or getattr(entry, "inputSchema", None) or {})
        parameters = {"type": "object", "properties": {}} | schema
        function = {"name": entry.name, "description": entry.description or "", "parameters": parameters}
        self.schema = {"type": "function", "function": function}
        self.is_method = True

    def run(self, arguments: Any, *, owner: object | None = None, context: Context | None = None) -> str:
        return cast(Caller, owner).call(self.name, dict(arguments))

    def renamed(self, name: str) -> McpTool:
        tool = copy.copy(self)
        tool.schema = {"type": "function", "function": {**self.schema["function"], "name": name}}
        return tool

    def __reduce__(self) -> Any:
        return object.__new__, (type(self),), vars(self)


def serve(tools: Sequence[Tool], *, name: str = "turntree") -> Any:
    """Return an MCP server that offers ``tools``; run it with ``mcp.server.stdio`` or over HTTP.

    Args:
        tools: Functions decorated with ``@tool`` that need no ``Context``.
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


async def _all_tools(client: Any) -> list[Any]:
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


class _Connection:
    # A client in its own event loop and thread, for synchronous callers.

    def __init__(self, server: Any, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self._loop = asyncio.new_event_loop()
        self._ready: asyncio.Future[Any] = self._loop.create_future()
        self._leave = asyncio.Event()
        self._task = self._loop.create_task(self._live())
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Connection:
        self._thread.start()
        try:
            self.ask(lambda client: asyncio.sleep(0))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(timeout=self._seconds)

    def ask(self, question: Any) -> Any:
        async def answer() -> Any:
            # Shielded, because cancelling a late request must not cancel the opening of the connection.
            return await question(await asyncio.shield(self._ready))

        asked = asyncio.run_coroutine_threadsafe(answer(), self._loop)
        try:
            return asked.result(timeout=self._seconds)
        except TimeoutError:
            asked.cancel()
            raise TimeoutError(f"the MCP server did not answer within {self._seconds:g} s") from None

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    def _stop(self) -> None:
        if self._ready.done():
            self._leave.set()
        else:  # still connecting
            self._task.cancel()

    async def _live(self) -> None:
        mcp, server = library("mcp", "mcp"), self._server
        if isinstance(server, mcp.StdioServerParameters):
            server = library("mcp.client.stdio", "mcp").stdio_client(server)
        try:
            async with mcp.Client(server) as client:
                self._ready.set_result(client)
                await self._leave.wait()
        except Exception as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)
            await self._leave.wait()
