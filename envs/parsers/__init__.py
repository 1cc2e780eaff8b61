"""Parsers and writers of tool calls in the policy's text.

A parser never raises on text written by a model: a call that cannot be read becomes
``ParsedTurn.error``, which is reported to the model. Not covered: calls that an
engine has already parsed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from turntree.envs.errors import UnknownParser
from turntree.envs.parsers.compact import CompactParser
from turntree.envs.parsers.harmony import HarmonyParser
from turntree.envs.parsers.hermes import HermesParser
from turntree.envs.parsers.llama3 import Llama3JsonParser
from turntree.envs.parsers.qwen import QwenXmlParser
from turntree.envs.parsers.tags import TagsParser
from turntree.envs.parsers.turn import OfferedTool, ParsedTurn, ToolParser
from turntree.envs.tools.tool import Tool

__all__ = [
    "FORMATS",
    "CompactParser",
    "HarmonyParser",
    "HermesParser",
    "Llama3JsonParser",
    "OfferedTool",
    "ParsedTurn",
    "QwenXmlParser",
    "TagsParser",
    "ToolParser",
    "get_parser",
]

_PARSERS: dict[str, Callable[[Sequence[Tool]], ToolParser]] = {
    "hermes": HermesParser,
    "compact": CompactParser,
    "llama3_json": Llama3JsonParser,
    "qwen": QwenXmlParser,
    "harmony": HarmonyParser,
    "tags": TagsParser,
}

FORMATS = (*(name for name in _PARSERS if name != "compact"), "compact")
"""Names of all formats; ``compact``, which reads plain prose the most easily, comes last."""


def get_parser(name: str, tools: Sequence[Tool] = ()) -> ToolParser:
    """The parser of a tool-call format.

    Args:
        name: ``hermes``, ``compact``, ``llama3_json``, ``qwen``, ``harmony`` or ``tags``.

    Raises:
        UnknownParser: If there is no such format; the message names the nearest.
    """
    if name in _PARSERS:
        return _PARSERS[name](tools)
    nearest = difflib.get_close_matches(str(name), _PARSERS, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else "choose one of them"
    raise UnknownParser(f"tool_format must be one of {', '.join(_PARSERS)}, got {name!r}; {hint}")
