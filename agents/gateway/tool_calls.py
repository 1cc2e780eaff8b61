from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from turntree.agents.gateway.http.wire import WireMessage, WireTool
from turntree.envs.message import ToolCall

Dictionaries = list[dict[str, Any]]


def to_dictionaries(
    messages: Sequence[WireMessage], tools: Sequence[WireTool] | None
) -> tuple[Dictionaries, Dictionaries]:
    """Return messages and tools as chat templates expect them, with arguments as mappings."""
    shown: Dictionaries = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        entry: dict[str, Any] = {"role": role, "content": message.content}
        if message.tool_calls and role == "assistant":
            entry["tool_calls"] = [
                {"id": call.id or "", "type": "function", "function": call.function.model_dump()}
                for call in message.tool_calls
            ]
        if role == "tool":
            entry |= {"tool_call_id": message.tool_call_id or "", "name": message.name or _called(shown, message)}
        shown.append(entry)
    offered = [
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools or ()
    ]
    return shown, offered


def _called(shown: Dictionaries, answer: WireMessage) -> str:
    for message in reversed(shown):
        for call in message.get("tool_calls", ()):
            if call["id"] == answer.tool_call_id:
                return str(call["function"]["name"])
    return ""


def call_arguments(call: ToolCall) -> str:
    """Return the arguments as JSON text; lone surrogates are escaped."""
    return json.dumps(dict(call.arguments), ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
