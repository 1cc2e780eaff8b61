"""The choices of an answer: a turn as a chat's message or as plain text, whole or in pieces of a stream."""

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
    """The answer to one request, as an API writes it: the turns of its ``TurnRequest``s, by their numbers."""

    dialect: Dialect
    """How its events and refusals are written."""

    def text(self, index: int) -> TurnText:
        """What was sampled so far of a turn."""

    def body(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        """The answer in one piece."""

    def begin(self) -> Iterator[dict[str, Any]]:
        """The events of a stream before the first token."""

    def grown(self, index: int) -> Iterator[dict[str, Any]]:
        """The event for what is to be shown now of a turn, if any."""

    def last(self, index: int, turn: SampledTurn) -> Iterator[dict[str, Any]]:
        """The rest of the events of a turn, once it has ended."""

    def end(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        """The events after the last turn."""


class Choice(ABC):
    """One turn of an answer.

    Args:
        tokenizer: Of the model, for log-probabilities; ``None`` if none are asked for.
    """

    def __init__(self, index: int, text: TurnText, tokenizer: Any = None) -> None:
        self.text = text
        """What was sampled so far."""
        self._index, self._tokenizer, self._shown = index, tokenizer, 0

    def first(self) -> Iterator[dict[str, Any]]:
        """The pieces of a stream before the first token."""
        return iter(())

    @abstractmethod
    def grown(self) -> Iterator[dict[str, Any]]:
        """The piece that is to be shown now, if any."""

    @abstractmethod
    def last(self, turn: SampledTurn) -> Iterator[dict[str, Any]]:
        """The rest of the pieces, once the turn has ended."""

    @abstractmethod
    def whole(self, turn: SampledTurn) -> dict[str, Any]:
        """The choice of an answer in one piece."""

    def _next(self, text: str) -> str:
        piece, self._shown = text[self._shown :], max(self._shown, len(text))
        return piece


class ReadTurn(NamedTuple):
    """A turn as a chat's message."""

    content: str
    """Its text without the calls."""
    calls: tuple[ToolCall, ...]
    ids: list[str]
    """Their ids, which clients answer to."""


class Choices:
    """The choices of a request, as OpenAI's API answers with them.

    Args:
        kind: ``object`` of an answer in one piece.
        stream: Whether it is answered in pieces.
        usage: Whether a stream ends with the usage.
    """

    dialect = OPENAI

    def __init__(
        self, kind: str, model: str, choices: Sequence[Choice], *, n: int, stream: bool = False, usage: bool = False
    ) -> None:
        self._choices, self._n, self._usage = choices, n, usage
        chunk = stream and kind == "chat.completion"
        self._head = answers.head("chat.completion.chunk" if chunk else kind, model)

    def text(self, index: int) -> TurnText:
        """What was sampled so far of a turn."""
        return self._choices[index].text

    def body(self, turns: Sequence[SampledTurn]) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [choice.whole(turn) for choice, turn in zip(self._choices, turns, strict=True)]
        return {**self._head, "choices": choices, "usage": answers.usage(turns, self._n)}

    def begin(self) -> Iterator[dict[str, Any]]:
        """The first piece of each choice."""
        return self._events(piece for choice in self._choices for piece in choice.first())

    def grown(self, index: int) -> Iterator[dict[str, Any]]:
        """The piece that is to be shown now, if any."""
        return self._events(self._choices[index].grown())

    def last(self, index: int, turn: SampledTurn) -> Iterator[dict[str, Any]]:
        """The rest of the pieces of a choice."""
        return self._events(self._choices[index].last(turn))

    def end(self, turns: Sequence[SampledTurn]) -> Iterator[dict[str, Any]]:
        """The usage, where it is asked for."""
        if self._usage:
            yield {**self._head, "choices": [], "usage": answers.usage(turns, self._n)}

    def _events(self, pieces: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return ({**self._head, "choices": [piece]} for piece in pieces)


class TextChoice(Choice):
    """A choice of completions."""

    def grown(self) -> Iterator[dict[str, Any]]:
        """The text that stays whatever follows."""
        if piece := self._next(settled(self.text.text, self.text.stops)):
            yield self._piece(piece)

    def last(self, turn: SampledTurn) -> Iterator[dict[str, Any]]:
        """The rest of the text, with the log-probabilities of all of it."""
        yield self._piece(self._next(turn.text)) | {**self._logprobs(turn), "finish_reason": self._reason(turn)}

    def whole(self, turn: SampledTurn) -> dict[str, Any]:
        """The choice."""
        return self._piece(turn.text) | {**self._logprobs(turn), "finish_reason": self._reason(turn)}

    def _piece(self, text: str) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": None}

    def _logprobs(self, turn: SampledTurn) -> dict[str, Any]:
        known = None if self._tokenizer is None else answers.text_logprobs(self._tokenizer, turn.completion)
        return {"logprobs": known}

    def _reason(self, turn: SampledTurn) -> str:
        return answers.finish_reason(turn.completion)


class ChatChoice(Choice):
    """A choice of chat completions.

    Args:
        parser: Reads tool calls; ``None`` where all of the turn is content.
        openings: Texts with which a call may begin.
        opened: What the prompt opened of a thought.
        several: Whether more than one call may be answered with.
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
        """Content and calls of the turn."""
        if self._parsed is None:
            whole = self._opened + turn.text
            found = ParsedTurn(content=whole) if self._parser is None else self._parser.parse(whole)
            calls = found.calls if self._several else found.calls[:1]
            content = found.content.removeprefix(self._opened.strip()).strip() if calls else turn.text
            self._parsed = ReadTurn(content, calls, answers.call_ids(calls))
        return self._parsed

    def first(self) -> Iterator[dict[str, Any]]:
        """Whose turn it is."""
        yield self._piece({"role": "assistant", "content": ""})

    def shown(self) -> str:
        """More of the content that stays whatever follows: no stop string, no call, no white space before a call."""
        text = settled(self.text.text, self._marks)
        if self._parser is not None:
            text = text.rstrip() if text.strip() == text.rstrip() else ""
        return self._next(text)

    def rest(self, turn: SampledTurn) -> str:
        """The content that was not shown."""
        return self._next(self.parsed(turn).content)

    def grown(self) -> Iterator[dict[str, Any]]:
        """The content that is to be shown now, if any."""
        if piece := self.shown():
            yield self._piece({"content": piece})

    def last(self, turn: SampledTurn) -> Iterator[dict[str, Any]]:
        """The rest of the content, the calls, and why the turn ended."""
        if piece := self.rest(turn):
            yield self._piece({"content": piece})
        calls = answers.message(*self.parsed(turn)).get("tool_calls", ())
        for number, call in enumerate(calls):
            yield self._piece({"tool_calls": [{"index": number, **call}]})
        yield self._piece({}) | self._ended(turn)

    def whole(self, turn: SampledTurn) -> dict[str, Any]:
        """The choice."""
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
