"""Tool servers of verifiers' tasks, run in this process: registered with an MCP server, called through its client."""

from __future__ import annotations

import functools
from typing import Any

from turntree.envs.bridges.mcp import McpTool, McpTools
from turntree.envs.bridges.missing import library
from turntree.envs.errors import SnapshotError


class VerifiersTools:
    """The toolsets of one episode; ``begin`` prepares them for its task."""

    def __init__(self, toolsets: list[Any], seconds: float) -> None:
        """Offer the tools of toolsets, under the names that verifiers gives them.

        Args:
            toolsets: Instances of ``verifiers.v1.Toolset``.
            seconds: Deadline of each call.
        """
        self._toolsets = toolsets
        self._clients = [McpTools(_server(toolset), seconds=seconds) for toolset in toolsets]
        self._servers: dict[str, tuple[McpTools, str]] = {}
        offered: list[McpTool] = []
        for toolset, server in zip(toolsets, self._clients, strict=True):
            prefix = f"{toolset.server_name}_" if toolset.server_name else ""
            for tool in server.tools:
                assert isinstance(tool, McpTool)
                self._servers[prefix + tool.name] = server, tool.name
                offered.append(tool.renamed(prefix + tool.name))
        self.offered = tuple(offered)

    @classmethod
    def of(cls, row: Any, seconds: float) -> VerifiersTools | None:
        """The tools of a task; ``None`` where it has none."""
        toolsets = row.toolsets(row.config) if hasattr(row, "toolsets") else []
        return cls(toolsets, seconds) if toolsets else None

    def begin(self, row: Any, state: Any) -> None:
        """Prepare the toolsets for a task.

        Args:
            row: The task.
            state: The trace's state, which they share and change.
        """

        async def pull() -> Any:
            return state

        async def push(before: bytes) -> None:
            """The state was changed in place."""

        for toolset, server in zip(self._toolsets, self._clients, strict=True):
            toolset._pull_state, toolset._push_state = pull, push
            server.within(toolset.setup)
            server.within(functools.partial(toolset.setup_task, row.data))

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool.

        Raises:
            ToolError: If it rejects the call.
        """
        server, own_name = self._servers[name]
        return server.call(own_name, arguments)

    def close(self) -> None:
        """Disconnect from all servers."""
        for client in self._clients:
            client.close()

    def __reduce__(self) -> Any:
        raise SnapshotError(
            "the tools of a verifiers task run in a server of their own and cannot be part of a snapshot"
        )


def _server(toolset: Any) -> Any:
    server = library("mcp.server.mcpserver", "mcp").MCPServer(toolset.server_name or type(toolset).__name__)
    toolset.register(server)
    return server
