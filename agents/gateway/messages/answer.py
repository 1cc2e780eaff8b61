from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from turntree.agents.engines.protocol import FinishReason
from turntree.agents.gateway.answers import call_arguments
from turntree.agents.gateway.choices import ChatChoice, Piece
from turntree.agents.gateway.http.errors import ApiError
from turntree.agents.gateway.http.event_stream import Dialect, named_event
from turntree.agents.gateway.turn_text import TurnText
from turntree.agents.gateway.turns import SampledTurn

Event = dict[str, Any]
_SIGNATURE = "turntree"  #: clients require a signature, and send it back
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def _refusal(error: ApiError) -> Event:
    kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    problem = str(error) if error.param is None or error.param in str(error) else f"{error.param}: {error}"
    return {"type": "error", "error": {"type": kind, "message": problem}}


#: events have names, and the last event is ``message_stop``
ANTHROPIC = Dialect(event=named_event, end=b"", refusal=_refusal)


class MessageAnswer:
    dialect = ANTHROPIC

    def __init__(self, model: str, choice: ChatChoice, *, prompt: int, most: int, thinks: bool = False) -> None:
        self._choice, self._prompt, self._most, self._thinks = choice, prompt, most, thinks
        self._head = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": model}
        self._blocks = 0
        self._open: str | None = None  #: type of the block that is open

    def text(self, index: int) -> TurnText:
        return self._choice.text

    def body(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        (turn,) = turns
        parsed = self._choice.parsed(turn)
        blocks: list[Event] = []
        if self._thinks and parsed.thought:
            blocks.append({"type": "thinking", "thinking": parsed.thought, "signature": _SIGNATURE})
        if parsed.content:
            blocks.append({"type": "text", "text": parsed.content})
        blocks += [
            {"type": "tool_use", "id": name, "name": call.name, "input": dict(call.arguments)}
            for call, name in zip(parsed.calls, parsed.ids, strict=True)
        ]
        return {**self._head, "content": blocks, **self._reason(turn), "usage": self._usage(turn)}

    def start(self) -> Iterator[Event]:
        usage = {"input_tokens": self._prompt, "output_tokens": 0}
        empty_message: Event = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield {"type": "message_start", "message": {**self._head, **empty_message}}
        yield {"type": "ping"}

    def update(self, index: int) -> Iterator[Event]:
        return self._shown(self._choice.shown())

    def last(self, index: int, turn: SampledTurn) -> Iterator[Event]:
        yield from self._shown(self._choice.rest(turn))
        yield from self._close()
        parsed = self._choice.parsed(turn)
        for call, name in zip(parsed.calls, parsed.ids, strict=True):
            yield from self._start({"type": "tool_use", "id": name, "name": call.name, "input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": call_arguments(call)})
            yield from self._close()
        yield {"type": "message_delta", "delta": self._reason(turn), "usage": self._usage(turn)}
        yield {"type": "message_stop"}

    def end(self, turns: Sequence[SampledTurn]) -> Iterator[Event]:
        return iter(())

    def _shown(self, piece: Piece) -> Iterator[Event]:
        if self._thinks and piece.thought:
            if self._open is None:
                yield from self._start({"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": piece.thought})
        if piece.text:
            if self._open != "text":
                yield from self._close()
                yield from self._start({"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": piece.text})

    def _start(self, block: Event) -> Iterator[Event]:
        self._open = block["type"]
        yield {"type": "content_block_start", "index": self._blocks, "content_block": block}

    def _delta(self, delta: Event) -> Event:
        return {"type": "content_block_delta", "index": self._blocks, "delta": delta}

    def _close(self) -> Iterator[Event]:
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": _SIGNATURE})
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._blocks}
            self._open = None
            self._blocks += 1

    def _reason(self, turn: SampledTurn) -> dict[str, Any]:
        done, stop = turn.completion, self._choice.text.stop
        reason = "end_turn"
        if done.finish_reason is FinishReason.LENGTH:
            cut = len(done.token_ids) >= self._most
            reason = "max_tokens" if cut else "model_context_window_exceeded"
        elif self._choice.parsed(turn).calls:
            reason = "tool_use"
        elif stop is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stop if reason == "stop_sequence" else None}

    def _usage(self, turn: SampledTurn) -> dict[str, int]:
        cached = min(turn.completion.cached_tokens, self._prompt)
        return {
            "input_tokens": self._prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": len(turn.completion.token_ids),
        }
