"""The known tool-call formats by name, and recognition of the format in which a text is written."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import cast

from turntree.envs.errors import UnknownParser
from turntree.envs.message import ToolCall
from turntree.envs.parsers import json_marks, parameter_tags
from turntree.envs.parsers.harmony import HarmonyParser
from turntree.envs.parsers.json_marks import HermesParser, JsonMarksParser
from turntree.envs.parsers.llama import Llama3JsonParser, PythonicParser
from turntree.envs.parsers.parameter_tags import ParameterTagsParser
from turntree.envs.parsers.prompted import CompactParser, TagsParser
from turntree.envs.parsers.turn import OfferedTool, ParsedTurn, ToolParser
from turntree.envs.tools.tool import Tool
from turntree.rewards.reading.thoughts import without_thoughts

_PARSERS: dict[str, Callable[[Sequence[Tool]], ToolParser]] = {
    "hermes": HermesParser,
    "qwen3_coder": partial(ParameterTagsParser, parameter_tags.QWEN3_CODER),
    "llama3_json": Llama3JsonParser,
    "pythonic": PythonicParser,
    "mistral": partial(JsonMarksParser, json_marks.MISTRAL),
    "mistral_v11": partial(JsonMarksParser, json_marks.MISTRAL_V11),
    "deepseek_v3": partial(JsonMarksParser, json_marks.DEEPSEEK_V3),
    "deepseek_v31": partial(JsonMarksParser, json_marks.DEEPSEEK_V31),
    "glm45": partial(ParameterTagsParser, parameter_tags.GLM45),
    "kimi_k2": partial(JsonMarksParser, json_marks.KIMI_K2),
    "minimax_m2": partial(ParameterTagsParser, parameter_tags.MINIMAX_M2),
    "granite": partial(JsonMarksParser, json_marks.GRANITE),
    "harmony": HarmonyParser,
    "tags": TagsParser,
    "compact": CompactParser,
}
FORMATS = tuple(_PARSERS)
DEFAULT_FORMAT = "hermes"  #: used if neither the environment nor the chat template has a format
#: Name of a parser in vLLM or SGLang -> name of turntree's format that reads the same calls, where the names differ.
ALIASES = {
    **dict.fromkeys(("qwen", "qwen25", "granite4"), "hermes"),
    **dict.fromkeys(("qwen3_xml", "mimo", "step3p5"), "qwen3_coder"),
    **dict.fromkeys(("llama3", "llama4_json"), "llama3_json"),
    **dict.fromkeys(("llama4_pythonic",), "pythonic"),
    **dict.fromkeys(("deepseekv3",), "deepseek_v3"),
    **dict.fromkeys(("deepseekv31",), "deepseek_v31"),
    **dict.fromkeys(("glm", "glm47"), "glm45"),
    **dict.fromkeys(("minimax-m2",), "minimax_m2"),
    **dict.fromkeys(("openai", "gpt-oss"), "harmony"),
}
# Parsers of vLLM and SGLang for formats that turntree lacks.
_UNSUPPORTED = """
apertus apertus2509 cohere_command3 cohere_command4 deepseek_v32 deepseek_v4 deepseekv32 deepseekv4 dots ernie45
functiongemma gemma4 gigachat3 granite-20b-fc hunyuan hunyuan_a13b hy_v3 inkling internlm interns1 jamba kimi_k3 lfm2
longcat minicpm5 minimax minimax_m3 minimax-m3 muse olmo3 phi4_mini_json poolside_v1 seed_oss solar_open2 spark25 step3
trinity xlam
"""
_MAX_EXAMPLE = 400

# Patterns of the beginning of a call of the tool {name}, by format. They recognise the format of a turn from which no
# parser reads a call: one cut off, malformed, surrounded by text, or without marks that are special tokens.
_BEGINNINGS = {
    "hermes": r"""<tool_call>\s*\{{\s*["']name["']\s*:\s*["']{name}["']""",
    "qwen3_coder": r"""<function\s*=\s*["']?\s*{name}\b""",
    "minimax_m2": r"""<invoke\s+name\s*=\s*["']?\s*{name}\b""",
    "granite": r"""<\|?tool_call\|?>\s*\[\s*\{{\s*["']name["']\s*:\s*["']{name}["']""",
    "glm45": r"<tool_call>\s*{name}\b",
    "kimi_k2": r"functions\.{name}:\d",
    "harmony": r"to=functions\.{name}\b",
    "deepseek_v3": r"function\s*(?:<\uff5ctool▁sep\uff5c>)?\s*{name}\s*```json",
    "deepseek_v31": r"<\uff5ctool▁call▁begin\uff5c>\s*{name}\b",
    "mistral": r"""(?:\[TOOL_CALLS\]\s*|\A\s*)\[\s*\{{\s*["']name["']\s*:\s*["']{name}["']""",
    "mistral_v11": r"""\[TOOL_CALLS\]\s*{name}\b|\A\s*{name}\s*\{{\s*["']""",
    "pythonic": r"\A\s*\[\s*{name}\(|\[{name}\((?:\w+=|\))",
    "llama3_json": r"""\{{\s*["']name["']\s*:\s*["']{name}["']\s*,\s*["'](?:arguments|parameters|args|input)["']\s*:""",
    "tags": r"\A\s*<{name}>",
}


def get_parser(name: str, tools: Sequence[Tool] = ()) -> ToolParser:
    """Create the parser of a tool-call format.

    Args:
        name: One of ``FORMATS``, or the name of vLLM's or SGLang's parser for one of them.

    Raises:
        UnknownParser: If there is no such format; the message suggests the nearest.
    """
    if (known := canonical(name)) in _PARSERS:
        return _PARSERS[known](tools)
    nearest = difflib.get_close_matches(str(name), [*FORMATS, *ALIASES], n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else "choose one of them"
    if name in _UNSUPPORTED.split():
        hint = "turntree does not support this format of vLLM or SGLang"
    raise UnknownParser(f"tool_format must be one of {', '.join(FORMATS)}, got {name!r}; {hint}")


def canonical(name: str) -> str:
    """Return turntree's name of a format for vLLM's or SGLang's name; return an unknown name unchanged."""
    return ALIASES.get(name, name)


def likely_format(text: str, tool_names: Iterable[str]) -> str | None:
    """Recognise the format in which a text calls, or begins to call, one of the tools.

    Returns:
        The first of ``FORMATS`` whose parser reads a call of one of the tools. If there is none, the format of which
        the text contains the beginning of a call, outside of thoughts; else ``None``.

    Example:
        >>> likely_format('[search(query="cats")]', ["search"])
        'pythonic'
    """
    names = [name for name in tool_names if name in text]
    if not names:
        return None
    # The tools' parameters are unknown here; one string parameter lets every format read a call.
    stubs = cast(Sequence[Tool], [OfferedTool(name, {"VALUE": {"type": "string"}}, {}) for name in names])
    for name, make in _PARSERS.items():
        if any(call.name in names for call in make(stubs).parse(text).calls):
            return name
    visible = without_thoughts(text)[0]
    pattern = f"(?:{'|'.join(map(re.escape, names))})"
    for name, beginning in _BEGINNINGS.items():
        if re.search(beginning.format(name=pattern), visible):
            return name
    return None


def read_turn(text: str, parser: ToolParser, name: str, tools: Sequence[Tool]) -> ParsedTurn:
    """Read one turn. If text only looks like a call, report an error that names the expected format."""
    turn = parser.parse(text)
    if turn.calls or not tools:
        return turn
    likely = likely_format(turn.content, [tool.name for tool in tools])
    expected = canonical(name)
    if likely is None or (likely == expected and turn.error):
        return turn
    if likely == expected:
        reason = f"this looks like a tool call in the {expected} format, but other text surrounds it"
    else:
        reason = f"this looks like a tool call in the {likely} format, but the expected format is {expected}"
    if turn.error:
        return ParsedTurn(content=turn.content, error=f"{turn.error}. ({reason[0].upper()}{reason[1:]}.)")
    example = _example(parser, get_parser(likely, tools).parse(turn.content).calls, tools)
    return ParsedTurn(content=turn.content, error=f"{reason}. Write it as {example}" if example else reason)


def _example(parser: ToolParser, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> str:
    # For the example, write the policy's own call in the expected format; if that is impossible, a call of any tool.
    samples = [ToolCall(name=tool.name, arguments=dict.fromkeys(tool.properties, "VALUE")) for tool in tools]
    for call in [*calls[:1], *samples]:
        with contextlib.suppress(ValueError):
            if len(written := parser.format_call(call)) <= _MAX_EXAMPLE:
                return written
    return ""
