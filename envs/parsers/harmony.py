from __future__ import annotations

import json
import re
from collections.abc import Sequence

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_json import read_object
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.envs.tools.tool import Tool


class HarmonyParser:
    """gpt-oss (harmony): ``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>``.

    The content of a turn is the text on the channel ``final``, and on ``commentary`` without a recipient; ``analysis``
    is thinking and left out. The text must contain the special tokens, which ``rollout`` ensures. Special tokens inside
    a message are text: a message ends where the next one begins, or where the turn ends.

    Example:
        >>> HarmonyParser().parse("<|channel|>final<|message|>Hello<|return|>").content
        'Hello'
    """

    special_tokens = True

    _EXAMPLE = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>"
    _MARK = re.compile(r"<\|(?:end|return|call)\|>")
    _END = re.compile(rf"{_MARK.pattern}\s*(?=<\||\Z)|\Z")
    _RECIPIENT = re.compile(r"\bto=(?:functions\.)?(?!assistant\b|user\b|all\b)([^\s<]+)")
    _CHANNEL = re.compile(r"<\|channel\|>(\w+)")

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Make the parser; the format needs no knowledge of ``tools``."""

    def parse(self, text: str) -> ParsedTurn:
        if "<|message|>" not in text and "to=functions." not in text and "<|channel|>" not in text:
            return ParsedTurn(content=self._MARK.sub("", text).strip())
        content: list[str] = []
        calls: list[ToolCall] = []
        position = 0
        while position < len(text):
            body = text.find("<|message|>", position)
            header = text[position : body if body >= 0 else len(text)]
            recipient = self._RECIPIENT.search(header)
            if body < 0:
                if recipient is not None:
                    return unreadable(text, "<|message|> is missing", self._EXAMPLE)
                break
            body += len("<|message|>")
            ends = self._END.search(text, body)
            assert ends is not None
            if recipient is not None:
                try:
                    arguments, end = read_object(text, body)
                    ends = self._END.match(text, end)
                    if ends is None:
                        raise ValueError(f"expected <|call|> behind the arguments, got {text[end : end + 40]!r}")
                except ValueError as error:
                    return unreadable(text, str(error), self._EXAMPLE)
                calls.append(ToolCall(name=recipient.group(1), arguments=arguments))
            else:
                channel = self._CHANNEL.search(header)
                if channel is None or channel.group(1) != "analysis":
                    content.append(text[body : ends.start()].strip())
            position = ends.end()
        return ParsedTurn(content="\n".join(content).strip(), calls=tuple(calls))

    def format_call(self, call: ToolCall) -> str:
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        return f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{arguments}<|call|>"
