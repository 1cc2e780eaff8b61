"""The dialogue of an episode as verifiers' ``Trace``, and the tool servers of verifiers' tasks."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from turntree.envs.bridges.libraries import library
from turntree.envs.bridges.mcp import McpTool, McpTools
from turntree.envs.errors import DataError, SnapshotError
from turntree.envs.message import Message, Role
from turntree.envs.parsers import ToolParser


def content_text(content: Any) -> str:
    """Return the text of a message's content, which may consist of parts.

    Raises:
        DataError: If a part is not text.
    """
    if isinstance(content, str) or content is None:
        return content or ""
    texts: list[Any] = [part.get("text") if isinstance(part, dict) else getattr(part, "text", None) for part in content]
    if None in texts:
        raise DataError(f"this bridge supports text only; a prompt has another kind of part: {content!r:.200}")
    return "\n".join(texts)


def played_messages(messages: Sequence[Message], parser: ToolParser) -> list[Any]:
    """Convert an episode's messages to verifiers' message classes; calls and thoughts are split from the text."""
    vf = library("verifiers.v1", "verifiers")
    played: list[Any] = []
    asked = 0
    for number, message in enumerate(messages):
        if message.role is Role.ASSISTANT:
            calls = [
                vf.ToolCall(
                    id=call.id or f"call_{number}_{at}", name=call.name, arguments=json.dumps(dict(call.arguments))
                )
                for at, call in enumerate(message.tool_calls)
            ]
            words = parser.parse(message.content).content if calls else message.content
            thought, mark, answer = words.rpartition("</think>")
            asked = number
            played.append(
                vf.AssistantMessage(
                    content=answer if mark else words,
                    reasoning_content=thought.removeprefix("<think>") if mark else None,
                    tool_calls=calls or None,
                )
            )
        elif message.role is Role.TOOL:
            # Tool messages without an id answer the calls of the last turn, in order.
            id = message.tool_call_id or f"call_{asked}_{number - asked - 1}"
            played.append(vf.ToolMessage(tool_call_id=id, content=message.content, name=message.name or None))
        else:
            kind = vf.SystemMessage if message.role is Role.SYSTEM else vf.UserMessage
            played.append(kind(content=message.content))
    return played


def trace_of(row: Any, messages: Sequence[Any], state: Any = None) -> Any:
    """Build the trace of one dialogue.

    Args:
        row: The verifiers task.
        messages: The dialogue of the task, shape (messages,).
        state: The state written by the task's tools; ``None`` for a new one.
    """
    vf, states = library("verifiers.v1", "verifiers"), library("verifiers.v1.state", "verifiers")
    task = vf.TraceTask(type=type(row).__name__, data=row.data, key=row.key, hash=row.hash)
    agent = vf.AgentInfo(config=vf.AgentConfig())
    trace = vf.Trace(task=task, agent=agent, state=state or states.state_cls(type(row))(), is_completed=True)
    for number, message in enumerate(messages):
        parent = number - 1 if number else None
        trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=message.role == "assistant"))
    return trace


class VerifiersTools:
    """The toolsets of one episode; ``begin`` prepares the toolsets for the episode's task."""

    def __init__(self, toolsets: list[Any], seconds: float) -> None:
        """Offer the tools of toolsets under the names that verifiers gives them.

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
        """Return the tools of a task, or ``None`` if the task has no tools."""
        toolsets = row.toolsets(row.config) if hasattr(row, "toolsets") else []
        return cls(toolsets, seconds) if toolsets else None

    def begin(self, row: Any, state: Any) -> None:
        """Prepare the toolsets for a task; they share ``state`` and change it in place."""

        async def pull() -> Any:
            return state

        async def push(before: bytes) -> None:
            """Do nothing: the state was changed in place."""

        for toolset, server in zip(self._toolsets, self._clients, strict=True):
            toolset._pull_state, toolset._push_state = pull, push
            server.within(toolset.setup)
            server.within(functools.partial(toolset.setup_task, row.data))

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        server, own_name = self._servers[name]
        return server.call(own_name, arguments)

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def __reduce__(self) -> Any:
        raise SnapshotError("the tools of a verifiers task run in a server and cannot be part of a snapshot")


def _server(toolset: Any) -> Any:
    server = library("mcp.server.mcpserver", "mcp").MCPServer(toolset.server_name or type(toolset).__name__)
    toolset.register(server)
    return server
