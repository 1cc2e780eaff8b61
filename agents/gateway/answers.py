from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Sequence
from typing import Any

from turntree.agents.engines.protocol import Completion, FinishReason
from turntree.agents.gateway.http.wire import WireMessage, WireTool
from turntree.agents.gateway.turns import SampledTurn
from turntree.agents.loop.template_messages import nine_letters
from turntree.agents.viewer.token_bytes import token_bytes
from turntree.envs.message import ToolCall

_IMPOSSIBLE = -9999.0  #: OpenAI's log-probability of an impossible token; JSON has no infinity


def head(kind: str, model: str) -> dict[str, Any]:
    prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def usage(turns: Sequence[SampledTurn], n: int) -> dict[str, Any]:
    # The n choices of one prompt share the prompt's tokens, so count the prompt once.
    done, firsts = [turn.completion for turn in turns], turns[::n]  # firsts: one turn of each prompt
    prompt, sampled = (
        sum(len(turn.prompt_ids) for turn in firsts),
        sum(len(completion.token_ids) for completion in done),
    )
    accepted, drafted = (
        sum(getattr(completion.draft, name) for completion in done) for name in ("accepted", "drafted")
    )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": sum(turn.completion.cached_tokens for turn in firsts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
            "verify_steps": sum(completion.draft.verify_steps for completion in done),
        },
    }


def finish_reason(done: Completion, calls: Sequence[ToolCall] = ()) -> str:
    if done.finish_reason is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if calls else "stop"


def message(content: str, calls: Sequence[ToolCall], ids: Sequence[str]) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if calls:
        wire["tool_calls"] = [
            {"id": name, "type": "function", "function": {"name": call.name, "arguments": call_arguments(call)}}
            for call, name in zip(calls, ids, strict=True)
        ]
    return wire


def call_ids(calls: Sequence[ToolCall]) -> list[str]:
    # Mistral's chat templates accept only ids of exactly nine alphanumeric characters.
    return [nine_letters(uuid.uuid4().hex) for _ in calls]


def chat_logprobs(tokenizer: Any, done: Completion) -> dict[str, Any]:
    tops = _tops(done)
    known = token_bytes(tokenizer, {*done.token_ids, *(token for top in tops for token, _ in top)})

    def entry(token: int, logprob: float) -> dict[str, Any]:
        raw = known.get(token, b"")
        return {"token": raw.decode(errors="replace"), "logprob": _finite(logprob), "bytes": list(raw)}

    content = [
        {**entry(token, logprob), "top_logprobs": [entry(*pair) for pair in top]}
        for token, logprob, top in zip(done.token_ids, done.logprobs, tops, strict=True)
    ]
    return {"content": content, "refusal": None}


def text_logprobs(tokenizer: Any, done: Completion) -> dict[str, Any]:
    tops = _tops(done)
    known = token_bytes(tokenizer, {*done.token_ids, *(token for top in tops for token, _ in top)})
    names = {token: raw.decode(errors="replace") for token, raw in known.items()}
    tokens = [names.get(token, "") for token in done.token_ids]
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    return {
        "tokens": tokens,
        "token_logprobs": [_finite(value) for value in done.logprobs],
        "top_logprobs": [{names.get(token, ""): _finite(value) for token, value in top} for top in tops],
        "text_offset": offsets[:-1],
    }


def _tops(done: Completion) -> list[list[tuple[int, float]]]:
    if done.top is None:
        return [[] for _ in done.token_ids]
    rows = zip(done.top.ids.tolist(), done.top.logprobs.tolist(), strict=True)
    return [[*zip(ids, logprobs, strict=True)] for ids, logprobs in rows]


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _IMPOSSIBLE


Dictionaries = list[dict[str, Any]]


def to_dictionaries(
    messages: Sequence[WireMessage], tools: Sequence[WireTool] | None
) -> tuple[Dictionaries, Dictionaries]:
    """Return messages and tools as chat templates expect them, with arguments as mappings."""
    chat_messages: Dictionaries = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        entry: dict[str, Any] = {"role": role, "content": message.content}
        if message.reasoning_content and role == "assistant":
            entry["reasoning_content"] = message.reasoning_content
        if message.tool_calls and role == "assistant":
            entry["tool_calls"] = [
                {"id": call.id or "", "type": "function", "function": call.function.model_dump()}
                for call in message.tool_calls
            ]
        if role == "tool":
            entry |= {
                "tool_call_id": message.tool_call_id or "",
                "name": message.name or _called_name(chat_messages, message),
            }
        chat_messages.append(entry)
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
    return chat_messages, offered


def _called_name(chat_messages: Dictionaries, answer: WireMessage) -> str:
    for message in reversed(chat_messages):
        for call in message.get("tool_calls", ()):
            if call["id"] == answer.tool_call_id:
                return str(call["function"]["name"])
    return ""


def call_arguments(call: ToolCall) -> str:
    """Return the arguments as JSON text; lone surrogates are escaped."""
    return json.dumps(dict(call.arguments), ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
