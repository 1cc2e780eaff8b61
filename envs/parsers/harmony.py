"""Calls as gpt-oss writes them (the harmony format): messages on channels, a recipient for calls."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_json import read_arguments
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.envs.tools.tool import Tool


class HarmonyParser:
    """``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>``.

    The content of a turn is the text on the channel ``final`` (and ``commentary`` without a recipient);
    ``analysis`` is thinking and left out. The text must contain the special tokens, which ``rollout`` ensures.

    Example:
        >>> HarmonyParser().parse("<|channel|>final<|message|>Hello<|return|>").content
        'Hello'
    """

    special_tokens = True

    _EXAMPLE = "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>"
    _END = re.compile(r"<\|(?:end|return|call)\|>")
    _RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
    _CHANNEL = re.compile(r"<\|channel\|>(\w+)")

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Make the parser; the format needs no knowledge of ``tools``."""

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn of the policy."""
        if "<|message|>" not in text and "to=functions." not in text:
            return ParsedTurn(content=self._END.sub("", text).strip())
        content, calls = [], []
        for message in self._END.split(text):
            header, opened, body = message.partition("<|message|>")
            recipient = self._RECIPIENT.search(header)
            if not opened:
                if recipient is not None:
                    return unreadable(text, "<|message|> is missing", self._EXAMPLE)
                continue
            if recipient is not None:
                try:
                    calls.append(ToolCall(name=recipient.group(1), arguments=read_arguments(body)))
                except ValueError as error:
                    return unreadable(text, str(error), self._EXAMPLE)
                continue
            channel = self._CHANNEL.search(header)
            if channel is None or channel.group(1) != "analysis":
                content.append(body.strip())
        return ParsedTurn(content="\n".join(content).strip(), calls=tuple(calls))

    def format_call(self, call: ToolCall) -> str:
        """Write a call in the form that ``parse`` reads."""
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        return f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{arguments}<|call|>"
