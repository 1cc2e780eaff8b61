"""How a prompt shows tools to a policy, and how the policy writes calls; used by rollouts and the gateway.

If the chat template renders ``tools``, the schemas are passed to the template. Otherwise the schemas and one example
call are added to the system message as text. Invariant: the prompt shows the format that is parsed. If a template would
show another format, it does not get the tools.

Not here: parsing calls (``turntree.envs.parsers``) and running them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from turntree.agents.loop.renderer import AS_TOKENS, Renderer
from turntree.envs.message import ToolCall
from turntree.envs.parsers import DEFAULT_FORMAT, OfferedTool, ToolParser, canonical, get_parser
from turntree.envs.tools.tool import Tool

logger = logging.getLogger(__name__)

Dictionaries = list[dict[str, Any]]
_VALUES = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None}


class ToolFormat:
    """How tools are shown to one model, and how the model calls them.

    Args:
        name: A format of ``get_parser``; ``None`` takes the chat template's own format.
    """

    def __init__(self, renderer: Renderer, name: str | None = None) -> None:
        template = renderer.template
        self.name = canonical(name or template.tool_format or DEFAULT_FORMAT)
        self._escape = template.marks.escaped
        #: whether calls are written with special tokens
        self.special_tokens = bool(getattr(get_parser(self.name), "special_tokens", False))
        agrees = template.tool_format in (None, self.name)
        self.in_template = template.renders_tools and agrees  #: whether the chat template shows the tools
        if template.renders_tools and not agrees:
            template.warn(
                f"calls are parsed as {self.name}, but the model's chat template writes {template.tool_format}: the "
                f"prompt describes the tools and the format {self.name} as text; remove tool_format to use the "
                "template's format"
            )

    def parser(self, tools: Sequence[Mapping[str, Any]]) -> ToolParser:
        offered = [OfferedTool.of(tool["function"]) for tool in tools]
        return get_parser(self.name, cast(Sequence[Tool], offered))

    def rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        parser: ToolParser | None = None,
        example: ToolCall | None = None,
    ) -> tuple[Dictionaries, Dictionaries]:
        """Return the messages and tools to pass to the chat template at the start of a dialogue."""
        copies = [dict(message) for message in messages]
        if self.in_template:
            return copies, [dict(tool) for tool in tools]
        parser = parser or self.parser(tools)
        written = [self._as_text(message, parser) for message in copies]
        return (told_of_tools(written, tools, parser, example) if tools else written), []

    def added(self, messages: Dictionaries, tools: Dictionaries) -> Dictionaries:
        return messages if self.in_template else [self._as_text(message, self.parser(tools)) for message in messages]

    def openings(self, tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Return the texts with which a call may begin; a stream must not show text from such a beginning on."""
        parser = self.parser(tools)
        example = {"ARGUMENT": "VALUE"}  # the compact format only has calls with one string argument
        written = (parser.format_call(ToolCall(name=tool["function"]["name"], arguments=example)) for tool in tools)
        texts = (*written, *getattr(parser, "openings", ()))
        begin = re.compile(r"[<\[][|\uff5c]?\w+|\w+|\W")
        return tuple(dict.fromkeys(match[0] for text in texts if (match := begin.match(text))))

    def _as_text(self, message: dict[str, Any], parser: ToolParser) -> dict[str, Any]:
        if not message.get("tool_calls"):
            return message
        if self.special_tokens:  # keep the format's own special tokens, but escape special tokens in a client's text
            message = self._escape(message)
        functions = [call["function"] for call in message["tool_calls"]]
        calls = [ToolCall(name=function["name"], arguments=function["arguments"]) for function in functions]
        text = "\n".join([*filter(None, [message["content"]]), *map(parser.format_call, calls)])
        return {"role": "assistant", "content": text, AS_TOKENS: self.special_tokens}


def opening(
    env: Any, renderer: Renderer, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]
) -> tuple[int, ...]:
    """Return the token ids of an episode's first prompt, or of the prompt after ``Env.compact`` shortened the dialogue.

    Call ``follow_template`` before the environment's ``reset``.
    """
    base = env.unwrapped
    shown = [] if getattr(base, "describes_tools", False) else tools
    tool_format = ToolFormat(renderer, getattr(base, "call_format", DEFAULT_FORMAT))
    parser, example = getattr(base, "parser", None), getattr(base, "example_call", None)
    return renderer.initial(*tool_format.rendered(messages, shown, parser=parser, example=example))


def untold(env: Any, renderer: Renderer, prompt: str, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return problems of a first prompt: tools that the prompt does not name, or a missing call format.

    ``prompt`` is the prompt's text with special tokens.
    """
    base = env.unwrapped
    names = [tool["function"]["name"] for tool in tools]
    problems = [f"the prompt does not name the tool {name}" for name in names if name not in prompt]
    tool_format = ToolFormat(renderer, base.call_format)
    shown = tool_format.in_template and renderer.template.tool_format == tool_format.name and not base.describes_tools
    if not tools or shown:
        return problems
    for call, written in _written_calls(tools, base.parser, base.example_call):
        if written[: written.index(call.name) + len(call.name) + 1] in prompt:
            return problems
    return [*problems, f"the prompt does not show how to call a tool in the format {tool_format.name}"]


def follow_template(env: Any, renderer: Renderer) -> None:
    """Make an environment without a fixed call format parse calls as the model's chat template writes them."""
    if prefer := getattr(env.unwrapped, "prefer_format", None):
        prefer(renderer.template.tool_format or DEFAULT_FORMAT)


def told_of_tools(
    dialogue: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    parser: ToolParser,
    example: ToolCall | None = None,
) -> Dictionaries:
    """Return the dialogue with the tools, and an example call, added to its system message."""
    schemas = "\n".join(json.dumps(_schema(tool), ensure_ascii=False) for tool in tools)
    note = f"You can call these tools:\n{schemas}"
    if shown := next(_written_calls(tools, parser, example), None):
        note += f"\nTo call one, write its name and arguments like this and wait for the answer:\n{shown[1]}"
    first, *rest = map(dict, dialogue)
    if first["role"] != "system":
        return [{"role": "system", "content": note}, first, *rest]
    return [{**first, "content": f"{first['content']}\n\n{note}"}, *rest]


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    # transformers adds the key ``return``, which no policy needs.
    return {key: value for key, value in tool["function"].items() if key != "return"}


def _written_calls(
    tools: Sequence[Mapping[str, Any]], parser: ToolParser, example: ToolCall | None
) -> Iterator[tuple[ToolCall, str]]:
    for call in [example] if example else map(_placeholder_call, tools):
        with suppress(ValueError):  # the compact format can write only calls with one string argument
            yield call, parser.format_call(call)


def _placeholder_call(tool: Mapping[str, Any]) -> ToolCall:
    """Return a call with the tool's required arguments, or its first argument if none is required.

    >>> function = {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}, "required": ["x"]}}
    >>> _placeholder_call({"function": function})
    ToolCall(name='f', arguments={'x': 1}, id='')
    """
    function = tool["function"]
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") or {}
    names = parameters.get("required") or [*properties][:1]
    return ToolCall(name=function["name"], arguments={name: _placeholder(properties.get(name) or {}) for name in names})


def _placeholder(schema: Mapping[str, Any]) -> Any:
    for key in ("default", "const"):
        if schema.get(key) is not None:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return _placeholder(schema["anyOf"][0])
    kind = schema.get("type", "string")
    return _VALUES.get(kind if isinstance(kind, str) else kind[0], "...")
