from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from turntree.agents.gateway import answers
from turntree.agents.gateway.http.event_stream import OPENAI, Dialect
from turntree.agents.gateway.turn_text import TurnText, settled
from turntree.agents.gateway.turns import SampledTurn
from turntree.envs.message import ToolCall
from turntree.envs.parsers import ParsedTurn, ToolParser


class Answer(Protocol):
    """The response to one request in one API's format; ``index`` is a turn's number within the request."""

    dialect: Dialect

    def text(self, index: int) -> TurnText:
        """Return the text of a turn so far."""

    def body(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        """Return the body of a response without streaming."""

    def start(self) -> Iterator[dict[str, Any]]:
        """Yield the events before the first token."""

    def update(self, index: int) -> Iterator[dict[str, Any]]:
        """Yield an event for new text of a turn, if there is any to show."""

    def last(self, index: int, turn: SampledTurn) -> Iterator[dict[str, Any]]:
        """Yield the remaining events of a finished turn."""

    def end(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        """Yield the events after the last turn."""


class Choice(ABC):
    """One turn of a response.

    Args:
        tokenizer: Needed only if log-probabilities are returned.
    """

    def __init__(self, index: int, text: TurnText, tokenizer: Any = None) -> None:
        self.text = text
        self._index, self._tokenizer, self._shown = index, tokenizer, 0

    def first(self) -> Iterator[dict[str, Any]]:
        return iter(())

    @abstractmethod
    def update(self) -> Iterator[dict[str, Any]]:
        """Yield a chunk with new text, if there is any to show."""

    @abstractmethod
    def last(self, turn: SampledTurn) -> Iterator[dict[str, Any]]:
        """Yield the remaining chunks of a finished turn."""

    @abstractmethod
    def whole(self, turn: SampledTurn) -> dict[str, Any]:
        """Return the choice of a response without streaming."""

    def _next(self, text: str) -> str:
        piece, self._shown = text[self._shown :], max(self._shown, len(text))
        return piece


class ReadTurn(NamedTuple):
    content: str  #: text without the tool calls
    calls: tuple[ToolCall, ...]
    ids: list[str]  #: tool call ids, by which the client sends results


class Choices:
    """The choices of a response in OpenAI's format.

    Args:
        kind: ``object`` field of a response without streaming.
        usage: Whether a stream ends with token counts.
    """

    dialect = OPENAI

    def __init__(
        self, kind: str, model: str, choices: Sequence[Choice], *, n: int, stream: bool = False, usage: bool = False
    ) -> None:
        self._choices, self._n, self._usage = choices, n, usage
        chunk = stream and kind == "chat.completion"
        self._head = answers.head("chat.completion.chunk" if chunk else kind, model)

    def text(self, index: int) -> TurnText:
        return self._choices[index].text

    def body(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        choices = [choice.whole(turn) for choice, turn in zip(self._choices, turns, strict=True)]
        return {**self._head, "choices": choices, "usage": answers.usage(turns, self._n)}

    def start(self) -> Iterator[dict[str, Any]]:
        return self._events(piece for choice in self._choices for piece in choice.first())

    def update(self, index: int) -> Iterator[dict[str, Any]]:
        return self._events(self._choices[index].update())

    def last(self, index: int, turn: SampledTurn) -> Iterator[dict[str, Any]]:
        return self._events(self._choices[index].last(turn))

    def end(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        if self._usage:
            yield {**self._head, "choices": [], "usage": answers.usage(turns, self._n)}

    def _events(self, pieces: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return ({**self._head, "choices": [piece]} for piece in pieces)


class TextChoice(Choice):
    def update(self) -> Iterator[dict[str, Any]]:
        if piece := self._next(settled(self.text.text, self.text.stops)):
            yield self._piece(piece)

    def last(self, turn: SampledTurn) -> Iterator[dict[str, Any]]:
        yield self._piece(self._next(turn.text)) | {**self._logprobs(turn), "finish_reason": self._reason(turn)}

    def whole(self, turn: SampledTurn) -> dict[str, Any]:
        return self._piece(turn.text) | {**self._logprobs(turn), "finish_reason": self._reason(turn)}

    def _piece(self, text: str) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": None}

    def _logprobs(self, turn: SampledTurn) -> dict[str, Any]:
        known = None if self._tokenizer is None else answers.text_logprobs(self._tokenizer, turn.completion)
        return {"logprobs": known}

    def _reason(self, turn: SampledTurn) -> str:
        return answers.finish_reason(turn.completion)


class ChatChoice(Choice):
    """One choice of a chat completion.

    Args:
        parser: Parses tool calls; ``None`` treats the whole turn as content.
        openings: Strings that may start a tool call.
        opened: Marker that starts a thought, if the prompt already ends with that marker; else empty.
        several: Whether all tool calls of a turn are returned, or only the first one.
    """

    def __init__(
        self,
        index: int,
        text: TurnText,
        *,
        parser: ToolParser | None = None,
        openings: tuple[str, ...] = (),
        opened: str = "",
        several: bool = True,
        tokenizer: Any = None,
    ) -> None:
        super().__init__(index, text, tokenizer)
        self._parser, self._several = parser, several
        self._marks = text.stops + openings
        self._opened = opened
        self._parsed: ReadTurn | None = None

    def parsed(self, turn: SampledTurn) -> ReadTurn:
        if self._parsed is None:
            whole = self._opened + turn.text
            parsed_turn = ParsedTurn(content=whole) if self._parser is None else self._parser.parse(whole)
            calls = parsed_turn.calls if self._several else parsed_turn.calls[:1]
            content = parsed_turn.content.removeprefix(self._opened.strip()).strip() if calls else turn.text
            self._parsed = ReadTurn(content, calls, answers.call_ids(calls))
        return self._parsed

    def first(self) -> Iterator[dict[str, Any]]:
        yield self._piece({"role": "assistant", "content": ""})

    def shown(self) -> str:
        # Hold back text that later tokens may complete to a stop string or a tool call, and white space before a call.
        text = settled(self.text.text, self._marks)
        if self._parser is not None:
            text = text.rstrip() if text.strip() == text.rstrip() else ""
        return self._next(text)

    def rest(self, turn: SampledTurn) -> str:
        return self._next(self.parsed(turn).content)

    def update(self) -> Iterator[dict[str, Any]]:
        if piece := self.shown():
            yield self._piece({"content": piece})

    def last(self, turn: SampledTurn) -> Iterator[dict[str, Any]]:
        if piece := self.rest(turn):
            yield self._piece({"content": piece})
        calls = answers.message(*self.parsed(turn)).get("tool_calls", ())
        for number, call in enumerate(calls):
            yield self._piece({"tool_calls": [{"index": number, **call}]})
        yield self._piece({}) | self._ended(turn)

    def whole(self, turn: SampledTurn) -> dict[str, Any]:
        return {
            "index": self._index,
            "message": answers.message(*self.parsed(turn)) | {"refusal": None},
            **self._ended(turn),
        }

    def _piece(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _ended(self, turn: SampledTurn) -> dict[str, Any]:
        known = None if self._tokenizer is None else answers.chat_logprobs(self._tokenizer, turn.completion)
        return {"logprobs": known, "finish_reason": answers.finish_reason(turn.completion, self.parsed(turn).calls)}
