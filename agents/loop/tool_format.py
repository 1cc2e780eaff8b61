"""How a prompt shows tools to a policy, and how the policy writes calls; the same for rollouts and the gateway.

A chat template that renders ``tools`` is given the schemas. For a template that ignores them, schemas and one example
call are text in the system message. Invariant: the prompt shows the format that is parsed. A template that would show
another format is not given the tools.

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
    """How tools are shown to one model, and how it calls them.

    Args:
        name: A format of ``get_parser``; ``None`` takes the chat template's own format.
    """

    def __init__(self, renderer: Renderer, name: str | None = None) -> None:
        template = renderer.template
        self.name = canonical(name or template.tool_format or DEFAULT_FORMAT)
        self._escape = template.marks.escaped
        #: calls are written with special tokens
        self.special_tokens = bool(getattr(get_parser(self.name), "special_tokens", False))
        agrees = template.tool_format in (None, self.name)
        self.in_template = template.renders_tools and agrees  #: the chat template shows the tools
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
        """Return the messages and tools to pass to the chat template at a dialogue's beginning."""
        given = [dict(message) for message in messages]
        if self.in_template:
            return given, [dict(tool) for tool in tools]
        parser = parser or self.parser(tools)
        written = [self._as_text(message, parser) for message in given]
        return (told_of_tools(written, tools, parser, example) if tools else written), []

    def added(self, messages: Dictionaries, tools: Dictionaries) -> Dictionaries:
        return messages if self.in_template else [self._as_text(message, self.parser(tools)) for message in messages]

    def openings(self, tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Return texts with which a call may begin; a stream must hold back what follows them."""
        parser = self.parser(tools)
        example = {"ARGUMENT": "VALUE"}  # the compact format only has calls with one string argument
        written = (parser.format_call(ToolCall(name=tool["function"]["name"], arguments=example)) for tool in tools)
        texts = (*written, *getattr(parser, "openings", ()))
        begin = re.compile(r"[<\[][|\uff5c]?\w+|\w+|\W")
        return tuple(dict.fromkeys(found[0] for text in texts if (found := begin.match(text))))

    def _as_text(self, message: dict[str, Any], parser: ToolParser) -> dict[str, Any]:
        if not message.get("tool_calls"):
            return message
        if self.special_tokens:  # only the format's own marks are tokens, not those in a client's text
            message = self._escape(message)
        functions = [call["function"] for call in message["tool_calls"]]
        calls = [ToolCall(name=function["name"], arguments=function["arguments"]) for function in functions]
        text = "\n".join([*filter(None, [message["content"]]), *map(parser.format_call, calls)])
        return {"role": "assistant", "content": text, AS_TOKENS: self.special_tokens}


def opening(
    env: Any, renderer: Renderer, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]
) -> tuple[int, ...]:
    """Return the token ids of an episode's first prompt, or of the dialogue that ``compact`` left.

    Call ``follow_template`` before the environment's ``reset``.
    """
    own = env.unwrapped
    shown = [] if getattr(own, "describes_tools", False) else tools
    form = ToolFormat(renderer, getattr(own, "call_format", DEFAULT_FORMAT))
    parser, example = getattr(own, "parser", None), getattr(own, "example_call", None)
    return renderer.initial(*form.rendered(messages, shown, parser=parser, example=example))


def untold(env: Any, renderer: Renderer, prompt: str, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the text of a first prompt, special tokens included, does not tell the policy about its tools."""
    own = env.unwrapped
    names = [tool["function"]["name"] for tool in tools]
    found = [f"the prompt does not name the tool {name}" for name in names if name not in prompt]
    form = ToolFormat(renderer, own.call_format)
    native = form.in_template and renderer.template.tool_format == form.name and not own.describes_tools
    if not tools or native:
        return found
    for call, written in _written_calls(tools, own.parser, own.example_call):
        if written[: written.index(call.name) + len(call.name) + 1] in prompt:
            return found
    return [*found, f"the prompt does not show how to call a tool in the format {form.name}"]


def follow_template(env: Any, renderer: Renderer) -> None:
    """Let an environment without a set format read calls as the model's chat template writes them."""
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
    # transformers adds ``return``, which no policy needs.
    return {key: value for key, value in tool["function"].items() if key != "return"}


def _written_calls(
    tools: Sequence[Mapping[str, Any]], parser: ToolParser, example: ToolCall | None
) -> Iterator[tuple[ToolCall, str]]:
    for call in [example] if example else map(_made_up_call, tools):
        with suppress(ValueError):  # the compact format only writes calls with one string argument
            yield call, parser.format_call(call)


def _made_up_call(tool: Mapping[str, Any]) -> ToolCall:
    """Return a call with the tool's required arguments, or its first argument if none is required.

    >>> function = {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}, "required": ["x"]}}
    >>> _made_up_call({"function": function})
    ToolCall(name='f', arguments={'x': 1}, id='')
    """
    function = tool["function"]
    parameters = function.get("parameters") or {}
    properties = parameters.get("properties") or {}
    names = parameters.get("required") or [*properties][:1]
    return ToolCall(name=function["name"], arguments={name: _made_up(properties.get(name) or {}) for name in names})


def _made_up(schema: Mapping[str, Any]) -> Any:
    for key in ("default", "const"):
        if schema.get(key) is not None:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return _made_up(schema["anyOf"][0])
    kind = schema.get("type", "string")
    return _VALUES.get(kind if isinstance(kind, str) else kind[0], "...")
