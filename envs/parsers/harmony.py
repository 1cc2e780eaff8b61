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
    is thinking and left out. The text must contain the special tokens, which ``rollout`` ensures. A special token
    counts as the end of a message only before the next message or at the end of the turn; elsewhere it is text.

    Example:
        >>> HarmonyParser().parse("<|channel|>final<|message|>Hello<|return|>").content
        'Hello'
    """

    special_tokens = True

    _EXAMPLE = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>"
    _MARK = re.compile(r"<\|(?:end|return|call)\|>")
    # An end mark only counts if a new message or the end of the turn follows; otherwise it is part of the text.
    _END = re.compile(rf"{_MARK.pattern}\s*(?=<\||\Z)|\Z")
    _RECIPIENT = re.compile(r"\bto=(?:functions\.)?(?!assistant\b|user\b|all\b)([^\s<]+)")
    _CHANNEL = re.compile(r"<\|channel\|>(\w+)")

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Make the parser; the format does not depend on ``tools``."""

    def parse(self, text: str) -> ParsedTurn:
        # Text without any header is content: for example, a turn whose special tokens were removed.
        if "<|message|>" not in text and "to=functions." not in text and "<|channel|>" not in text:
            return ParsedTurn(content=self._MARK.sub("", text).strip())
        content: list[str] = []
        calls: list[ToolCall] = []
        position = 0
        while position < len(text):
            # One message: header, <|message|>, body, end mark. The header names the channel and perhaps a recipient.
            body = text.find("<|message|>", position)
            header = text[position : body if body >= 0 else len(text)]
            recipient = self._RECIPIENT.search(header)
            if body < 0:
                if recipient is not None:
                    return unreadable(text, "<|message|> is missing", self._EXAMPLE)
                break
            body += len("<|message|>")
            end_mark = self._END.search(text, body)
            assert end_mark is not None
            if recipient is not None:
                try:
                    arguments, end = read_object(text, body)
                    # Search from the end of the JSON: a mark inside the arguments is text.
                    end_mark = self._END.match(text, end)
                    if end_mark is None:
                        raise ValueError(f"expected <|call|> after the arguments, got {text[end : end + 40]!r}")
                except ValueError as error:
                    return unreadable(text, str(error), self._EXAMPLE)
                calls.append(ToolCall(name=recipient.group(1), arguments=arguments))
            else:
                channel = self._CHANNEL.search(header)
                if channel is None or channel.group(1) != "analysis":
                    content.append(text[body : end_mark.start()].strip())
            position = end_mark.end()
        return ParsedTurn(content="\n".join(content).strip(), calls=tuple(calls))

    def format_call(self, call: ToolCall) -> str:
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        return f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{arguments}<|call|>"
