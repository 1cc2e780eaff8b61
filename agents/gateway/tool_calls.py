"""Tools as they are shown to the policy, and its calls as clients read them.

A chat template that knows tools renders the schemas and the calls; for one that does not, they stand as text in the
system message and in the turns, in the gateway's format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

from turntree.agents.errors import RenderError
from turntree.agents.gateway.http.wire import WireMessage, WireTool
from turntree.agents.loop.chat_rollout import told_of_tools
from turntree.agents.loop.renderer import AS_TOKENS, Renderer
from turntree.envs.message import ToolCall
from turntree.envs.parsers import ToolParser, get_parser
from turntree.envs.tools.tool import Tool

Dictionaries = list[dict[str, Any]]
_PROBE = {"type": "function", "function": {"name": "turntree_probe", "description": "", "parameters": {}}}


class OfferedTool(NamedTuple):
    """A client's tool: the part of a ``Tool`` that parsers read."""

    name: str
    properties: dict[str, Any]
    """JSON schema of each parameter, by name."""
    definitions: dict[str, Any]
    """Schemas that those refer to, by name."""

    @classmethod
    def of(cls, function: Mapping[str, Any]) -> Self:
        """A tool as OpenAI's clients describe it."""
        parameters = function["parameters"]
        named = {**(parameters.get("definitions") or {}), **(parameters.get("$defs") or {})}
        return cls(function["name"], parameters.get("properties") or {}, named)


class ToolFormat:
    """How tools are shown to one model, and how it calls them.

    Args:
        name: A format of ``get_parser``, in which the policy writes calls.
    """

    def __init__(self, renderer: Renderer, name: str) -> None:
        self._name = name
        self._quoted = renderer.template.marks.quoted
        self.special_tokens = bool(getattr(get_parser(name), "special_tokens", False))
        """Whether calls are written with special tokens."""
        asked = [{"role": "user", "content": "question"}]
        try:
            self.in_template = renderer.initial(asked, [_PROBE]) != renderer.initial(asked)
        except RenderError:
            self.in_template = False

    def parser(self, tools: Sequence[Mapping[str, Any]]) -> ToolParser:
        """The parser of calls of ``tools``."""
        offered = [OfferedTool.of(tool["function"]) for tool in tools]
        return get_parser(self._name, cast(Sequence[Tool], offered))

    def rendered(self, messages: Dictionaries, tools: Dictionaries) -> tuple[Dictionaries, Dictionaries]:
        """The messages and tools that the chat template is given for a dialogue's beginning."""
        if self.in_template:
            return messages, tools
        parser = self.parser(tools)
        written = [self._as_text(message, parser) for message in messages]
        return (told_of_tools(written, tools, parser) if tools else written), []

    def added(self, messages: Dictionaries, tools: Dictionaries) -> Dictionaries:
        """The messages that the chat template is given after a turn."""
        return messages if self.in_template else [self._as_text(message, self.parser(tools)) for message in messages]

    def openings(self, tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Texts with which a call may begin: what follows one is not shown before the turn has ended."""
        parser = self.parser(tools)
        example = {"ARGUMENT": "VALUE"}  # the compact format has calls with one text alone
        written = (parser.format_call(ToolCall(name=tool["function"]["name"], arguments=example)) for tool in tools)
        return tuple(dict.fromkeys(found[0] for text in written if (found := re.match(r"<\|?\w+|\w+|\W", text))))

    def _as_text(self, message: dict[str, Any], parser: ToolParser) -> dict[str, Any]:
        if not message.get("tool_calls"):
            return message
        if self.special_tokens:  # the format's own marks are tokens, and none of those in a client's texts
            message = self._quoted(message)
        functions = [call["function"] for call in message["tool_calls"]]
        calls = [ToolCall(name=function["name"], arguments=function["arguments"]) for function in functions]
        text = "\n".join([*filter(None, [message["content"]]), *map(parser.format_call, calls)])
        return {"role": "assistant", "content": text, AS_TOKENS: self.special_tokens}


def to_dictionaries(
    messages: Sequence[WireMessage], tools: Sequence[WireTool] | None
) -> tuple[Dictionaries, Dictionaries]:
    """Messages and tools as chat templates take them: arguments are mappings, a developer speaks as the system."""
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
    """The name of the tool that a message answers, if the call is among the messages before it."""
    for message in reversed(shown):
        for call in message.get("tool_calls", ()):
            if call["id"] == answer.tool_call_id:
                return str(call["function"]["name"])
    return ""


def call_arguments(call: ToolCall) -> str:
    """The arguments of a call as clients read them; half of a surrogate stays what it is."""
    return json.dumps(dict(call.arguments), ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
