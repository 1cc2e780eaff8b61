from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from turntree.agents.engines.protocol import FinishReason
from turntree.agents.gateway import answers
from turntree.agents.gateway.choices import ChatChoice, Piece, ReadTurn
from turntree.agents.gateway.http.event_stream import OPENAI, Dialect, named_event
from turntree.agents.gateway.responses.request import ResponsesRequest
from turntree.agents.gateway.turn_text import TurnText
from turntree.agents.gateway.turns import SampledTurn

Event = dict[str, Any]


def _event(event: Mapping[str, Any]) -> bytes:
    if "type" not in event:  # a refusal
        error = event["error"]
        event = {"type": "error", **{name: error[name] for name in ("code", "message", "param")}, "sequence_number": 0}
    return named_event(event)


#: events have names, and the last event is ``response.completed`` or ``response.incomplete``
RESPONSES = Dialect(event=_event, end=b"", refusal=OPENAI.refusal)


class ResponseAnswer:
    """The response to one request of the Responses API.

    Args:
        tokenizer: Names the tokens of log-probabilities; ``None`` if the client did not ask for them.
    """

    dialect = RESPONSES

    def __init__(self, name: str, body: ResponsesRequest, choice: ChatChoice, *, tokenizer: Any = None) -> None:
        self._id, self._body, self._choice, self._tokenizer = name, body, choice, tokenizer
        self._created = int(time.time())
        self._numbers = count()
        self._items: list[Event] = []  #: items that the stream has ended
        self._open: Event | None = None  #: item that the stream has begun
        self._ids = {kind: f"{kind}_{uuid.uuid4().hex}" for kind in ("rs", "msg")}

    def text(self, index: int) -> TurnText:
        return self._choice.text

    def body(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        (turn,) = turns
        parsed = self._choice.parsed(turn)
        items = [self._reasoning(parsed.thought)] if parsed.thought else []
        if parsed.content or not (parsed.thought or parsed.calls):
            items.append(self._message(parsed.content, self._logprobs(turn), self._status(turn)))
        return self._response(turn, items + _calls(parsed))

    def start(self) -> Iterator[Event]:
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self._response(None, []))

    def update(self, index: int) -> Iterator[Event]:
        return self._shown(self._choice.shown())

    def last(self, index: int, turn: SampledTurn) -> Iterator[Event]:
        parsed = self._choice.parsed(turn)
        yield from self._shown(self._choice.rest(turn))
        if self._open is None and not self._items and not parsed.calls:
            yield from self._begin(self._message("", [], "in_progress"))
        yield from self._close(self._logprobs(turn), self._status(turn))
        for call in _calls(parsed):
            yield self._event("response.output_item.added", item={**call, "arguments": "", "status": "in_progress"})
            at = {"item_id": call["id"], "output_index": len(self._items)}
            yield self._event("response.function_call_arguments.delta", **at, delta=call["arguments"])
            yield self._event("response.function_call_arguments.done", **at, arguments=call["arguments"])
            yield self._event("response.output_item.done", item=call)
            self._items.append(call)
        response = self._response(turn, self._items)
        yield self._event(f"response.{response['status']}", response=response)

    def end(self, turns: Sequence[SampledTurn]) -> Iterator[Event]:
        return iter(())

    def _event(self, kind: str, **fields: Any) -> Event:
        if kind.startswith("response.output_item"):
            fields["output_index"] = len(self._items)
        return {"type": kind, "sequence_number": next(self._numbers), **fields}

    def _shown(self, piece: Piece) -> Iterator[Event]:
        if piece.thought:
            if self._open is None:
                yield from self._begin(self._reasoning(""))
            yield self._part_event("reasoning_text.delta", delta=piece.thought)
        if piece.text:
            if self._open is not None and self._open["type"] == "reasoning":
                yield from self._close([], "completed")
            if self._open is None:
                yield from self._begin(self._message("", [], "in_progress"))
            yield self._part_event("output_text.delta", delta=piece.text, logprobs=[])

    def _part_event(self, kind: str, **fields: Any) -> Event:
        assert self._open is not None, "an item has begun"
        if "delta" in fields:
            self._open["content"][0]["text"] += fields["delta"]
        at = {"item_id": self._open["id"], "output_index": len(self._items), "content_index": 0}
        return self._event(f"response.{kind}", **at, **fields)

    def _begin(self, item: Event) -> Iterator[Event]:
        (part,) = item["content"]
        yield self._event("response.output_item.added", item={**item, "content": [], "status": "in_progress"})
        self._open = item
        yield self._part_event("content_part.added", part=dict(part))

    def _close(self, logprobs: list[Event], status: str) -> Iterator[Event]:
        if self._open is None:
            return
        item = self._open
        (part,) = item["content"]
        if item["type"] == "reasoning":
            yield self._part_event("reasoning_text.done", text=part["text"])
        else:
            part["logprobs"] = logprobs
            shown = [_without_bytes(entry) for entry in logprobs]
            yield self._part_event("output_text.done", text=part["text"], logprobs=shown)
        item["status"] = status
        yield self._part_event("content_part.done", part=dict(part))
        yield self._event("response.output_item.done", item=item)
        self._items.append(item)
        self._open = None

    def _reasoning(self, thought: str) -> Event:
        parts = [{"type": "reasoning_text", "text": thought}]
        return {"id": self._ids["rs"], "type": "reasoning", "summary": [], "content": parts, "status": "completed"}

    def _message(self, text: str, logprobs: list[Event], status: str) -> Event:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
        head = {"id": self._ids["msg"], "type": "message", "role": "assistant"}
        return {**head, "status": status, "content": [part]}

    def _logprobs(self, turn: SampledTurn) -> list[Event]:
        if self._tokenizer is None:
            return []
        found: list[Event] = answers.chat_logprobs(self._tokenizer, turn.completion)["content"]
        return found

    @staticmethod
    def _status(turn: SampledTurn) -> str:
        return "incomplete" if turn.completion.finish_reason is FinishReason.LENGTH else "completed"

    def _response(self, turn: SampledTurn | None, items: list[Event]) -> dict[str, Any]:
        body, status = self._body, "in_progress" if turn is None else self._status(turn)
        reasoning = body.reasoning
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": None if turn is None else int(time.time()),
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model,
            "output": items,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": body.tool_choice if isinstance(body.tool_choice, str) else "auto",
            "tools": [{"strict": False, **tool.model_dump(exclude_none=True)} for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None if turn is None else self._usage(turn),
        }

    def _usage(self, turn: SampledTurn) -> dict[str, Any]:
        prompt, sampled = len(turn.prompt_ids), len(turn.completion.token_ids)
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": turn.completion.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": self._choice.thought_tokens(turn)},
            "total_tokens": prompt + sampled,
        }


def _without_bytes(entry: Event) -> Event:
    # The events of a stream name a token by its text alone.
    tops = [{"token": top["token"], "logprob": top["logprob"]} for top in entry["top_logprobs"]]
    return {"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": tops}


def _calls(parsed: ReadTurn) -> list[Event]:
    return [
        {
            "id": f"fc_{name}",
            "type": "function_call",
            "status": "completed",
            "call_id": name,
            "name": call.name,
            "arguments": answers.call_arguments(call),
        }
        for call, name in zip(parsed.calls, parsed.ids, strict=True)
    ]
