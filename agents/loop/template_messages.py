"""Converts messages to the form that a chat template supports, if the template lacks a role or restricts ids.

Each function takes and returns OpenAI messages; none changes its arguments.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Sequence
from typing import Any

from turntree.envs.message import ToolCall
from turntree.envs.parsers import HermesParser

Messages = list[dict[str, Any]]
_LETTERS = string.digits + string.ascii_letters
_NINE = re.compile(r"[a-zA-Z0-9]{9}")


def nine_letters(call_id: str) -> str:
    """Return an id of nine letters or digits, as Mistral's templates need: ``call_id`` itself, or its digest.

    >>> nine_letters("call00001"), nine_letters("call_8f") == nine_letters("call_8f")
    ('call00001', True)
    """
    if _NINE.fullmatch(call_id):
        return call_id
    digest = hashlib.blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=9).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest)


def with_ids(messages: Sequence[dict[str, Any]], *, needed: bool, nine: bool) -> Messages:
    """Add ids to calls and answers if ``needed``, with nine letters if ``nine``; an answer gets its call's id."""
    converted: Messages = []
    waiting: list[tuple[str, str]] = []  # ids and names of calls that have no answer yet
    number = 0

    def fit(call_id: Any) -> str:
        nonlocal number
        if not call_id:
            call_id, number = f"call{number:05d}", number + 1
        return nine_letters(call_id) if nine else call_id

    for message in messages:
        if message.get("tool_calls"):
            calls = [
                {**call, "id": fit(call.get("id"))} if call.get("id") or needed else call
                for call in message["tool_calls"]
            ]
            waiting = [(call.get("id", ""), call["function"]["name"]) for call in calls]
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool" and (needed or message.get("tool_call_id")):
            answer_id = message.get("tool_call_id")
            answered = next((call for call in waiting if not answer_id or call[0] == fit(answer_id)), None)
            if answered is not None:
                waiting.remove(answered)
            call_id, name = answered or (fit(answer_id), "tool")
            message = {**message, "tool_call_id": call_id}
            if needed:
                message["name"] = message.get("name") or name
        converted.append(message)
    return converted


def arguments_as_text(messages: Sequence[dict[str, Any]]) -> Messages:
    def with_text(call: dict[str, Any]) -> dict[str, Any]:
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        return {**call, "function": {**call["function"], "arguments": arguments}}

    calls_by_message = [message.get("tool_calls") for message in messages]
    return [
        {**message, "tool_calls": list(map(with_text, calls))} if calls else message
        for message, calls in zip(messages, calls_by_message, strict=True)
    ]


def tools_as_user(messages: Sequence[dict[str, Any]]) -> Messages:
    """Merge each run of tool messages, and a user message right after the run, into one user message.

    >>> tools_as_user([{"role": "tool", "content": "4"}])
    [{'role': 'user', 'content': '<tool_response>\\n4\\n</tool_response>'}]
    """
    merged: Messages = []
    after_tool = False
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
        if after_tool and message["role"] in ("tool", "user"):
            merged[-1] = {"role": "user", "content": merged[-1]["content"] + "\n" + content}
        elif message["role"] == "tool":
            merged.append({"role": "user", "content": content})
        else:
            merged.append(message)
        after_tool = message["role"] == "tool" or (after_tool and message["role"] == "user")
    return merged


def calls_as_text(messages: Sequence[dict[str, Any]]) -> Messages:
    """Write calls into the text of their message, in the Hermes format."""
    parser = HermesParser()
    written: Messages = []
    for message in messages:
        if message.get("tool_calls"):
            functions = [call["function"] for call in message["tool_calls"]]
            called = [ToolCall(name=function["name"], arguments=function["arguments"]) for function in functions]
            text = "\n".join([*filter(None, [message["content"]]), *map(parser.format_call, called)])
            message = {"role": message["role"], "content": text}
        written.append(message)
    return written


def system_as_user(messages: Sequence[dict[str, Any]], *, first: bool) -> Messages:
    """Move system messages to the start of the next user message, or to the end of the last user message.

    Args:
        first: Whether to keep the system messages at the very beginning.

    >>> system_as_user([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], first=False)
    [{'role': 'user', 'content': 'Be brief.\\n\\nHi'}]
    """
    roles = [message["role"] for message in messages]
    leading = next((n for n, role in enumerate(roles) if role != "system"), len(messages)) if first else 0
    head, rest = joined(messages[:leading]), messages[leading:]
    moved: Messages = []
    opens = False
    for message in rest:
        system = message["role"] == "system"
        if system or (opens and message["role"] == "user"):
            message = {**message, "role": "user"}
            if moved and moved[-1]["role"] == "user":
                message = joined([moved.pop(), message])[0]
        moved.append(message)
        opens = system
    return head + moved


def joined(messages: Sequence[dict[str, Any]]) -> Messages:
    """Join adjacent system messages, and adjacent user messages."""
    merged: Messages = []
    for message in messages:
        if merged and message["role"] == merged[-1]["role"] and message["role"] in ("system", "user"):
            merged[-1] = {**message, "content": f"{merged[-1]['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    return merged
