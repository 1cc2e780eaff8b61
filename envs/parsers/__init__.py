"""Parsers and writers of tool calls in the policy's text.

A parser never raises on text written by a model. If a call cannot be read, ``ParsedTurn.error`` is set and reported
to the model. Not covered: calls that an engine has already parsed.
"""

from __future__ import annotations

from turntree.envs.parsers.formats import DEFAULT_FORMAT, FORMATS, canonical, get_parser, likely_format, read_turn
from turntree.envs.parsers.harmony import HarmonyParser
from turntree.envs.parsers.json_marks import HermesParser, JsonMarksParser
from turntree.envs.parsers.llama import Llama3JsonParser, PythonicParser
from turntree.envs.parsers.parameter_tags import ParameterTagsParser
from turntree.envs.parsers.prompted import CompactParser, TagsParser
from turntree.envs.parsers.turn import OfferedTool, ParsedTurn, ToolParser

__all__ = [
    "DEFAULT_FORMAT",
    "FORMATS",
    "CompactParser",
    "HarmonyParser",
    "HermesParser",
    "JsonMarksParser",
    "Llama3JsonParser",
    "OfferedTool",
    "ParameterTagsParser",
    "ParsedTurn",
    "PythonicParser",
    "TagsParser",
    "ToolParser",
    "canonical",
    "get_parser",
    "likely_format",
    "read_turn",
]
