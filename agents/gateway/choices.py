from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from turntree.agents.gateway import answers
from turntree.agents.gateway.http.event_stream import OPENAI, Dialect
from turntree.agents.gateway.turn_text import TurnText, settled
from turntree.agents.gateway.turns import SampledTurn
from turntree.envs.message import ToolCall
from turntree.envs.parsers import ParsedTurn, ToolParser
from turntree.rewards.reading.thoughts import Thought


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
    content: str  #: text without the tool calls, and without ``thought``
    thought: str  #: the thought at the start of the turn; empty if the API has no field for thoughts
    calls: tuple[ToolCall, ...]
    ids: list[str]  #: tool call ids, by which the client sends results


class Piece(NamedTuple):  # what is new since the last piece of a stream
    thought: str
    text: str


def split_thought(text: str, marks: Thought, *, ended: bool) -> tuple[str, str]:
    """Split a turn, or its first tokens, into the thought at its start and the text after that thought.

    Both parts of an unfinished turn are prefixes of the same part of the finished turn.
    """
    start = text.lstrip()
    if not start.startswith(marks.begin):
        # Hold back the first characters of a begin marker.
        return "", "" if not ended and marks.begin.startswith(start) else text
    thought, end, rest = start[len(marks.begin) :].partition(marks.end)
    return (thought if end or ended else settled(thought, [marks.end])).strip(), rest.lstrip()


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
        calls: Parser of tool calls, and strings that may start a call; ``None`` treats the whole turn as content.
        opened: Marker that starts a thought, if the prompt already ends with that marker; else empty.
        thoughts: Markers of thoughts to separate from the content; ``None`` leaves thoughts in the content.
        several: Whether all tool calls of a turn are returned, or only the first one.
    """

    def __init__(
        self,
        index: int,
        text: TurnText,
        *,
        calls: tuple[ToolParser, tuple[str, ...]] | None = None,
        opened: str = "",
        thoughts: Thought | None = None,
        several: bool = True,
        tokenizer: Any = None,
    ) -> None:
        super().__init__(index, text, tokenizer)
        self._parser = None if calls is None else calls[0]
        openings = () if calls is None else calls[1]
        self._marks, self._several = text.stops + openings, several
        self._opened, self._thoughts = opened, thoughts
        self._thought_shown = 0
        self._parsed: ReadTurn | None = None

    def parsed(self, turn: SampledTurn) -> ReadTurn:
        if self._parsed is None:
            whole = self._opened + turn.text
            parsed_turn = ParsedTurn(content=whole) if self._parser is None else self._parser.parse(whole)
            calls = parsed_turn.calls if self._several else parsed_turn.calls[:1]
            thought = ""
            if self._thoughts is not None:
                content = parsed_turn.content if calls else whole
                thought, content = split_thought(content, self._thoughts, ended=True)
                content = content.strip() if calls else content
            else:
                content = parsed_turn.content.removeprefix(self._opened.strip()).strip() if calls else turn.text
            self._parsed = ReadTurn(content, thought, calls, answers.call_ids(calls))
        return self._parsed

    def thought_tokens(self, turn: SampledTurn) -> int:
        """Return how many of the turn's tokens belong to its thought, including the end marker."""
        if not self.parsed(turn).thought:
            return 0
        assert self._thoughts is not None, "otherwise nothing is separated"
        tokens, end = turn.completion.token_ids, self._thoughts.end
        return bisect_left(range(len(tokens)), True, key=lambda count: end in self.text.decode(tokens[:count]))

    def first(self) -> Iterator[dict[str, Any]]:
        yield self._piece({"role": "assistant", "content": ""})

    def shown(self) -> Piece:
        # Hold back text that later tokens may complete to a stop string or a tool call, and white space before a call.
        thought, text = "", settled(self.text.text, self._marks)
        if self._thoughts is not None:
            thought, text = split_thought(self._opened + text, self._thoughts, ended=False)
        if self._parser is not None:
            text = text.rstrip() if text.strip() == text.rstrip() else ""
        return self._new(thought, text)

    def rest(self, turn: SampledTurn) -> Piece:
        parsed = self.parsed(turn)
        return self._new(parsed.thought, parsed.content)

    def _new(self, thought: str, text: str) -> Piece:
        new, self._thought_shown = thought[self._thought_shown :], max(self._thought_shown, len(thought))
        return Piece(new, self._next(text))

    def update(self) -> Iterator[dict[str, Any]]:
        if text := self.shown().text:
            yield self._piece({"content": text})

    def last(self, turn: SampledTurn) -> Iterator[dict[str, Any]]:
        if text := self.rest(turn).text:
            yield self._piece({"content": text})
        calls = self._message(turn).get("tool_calls", ())
        for number, call in enumerate(calls):
            yield self._piece({"tool_calls": [{"index": number, **call}]})
        yield self._piece({}) | self._ended(turn)

    def whole(self, turn: SampledTurn) -> dict[str, Any]:
        return {
            "index": self._index,
            "message": self._message(turn) | {"refusal": None},
            **self._ended(turn),
        }

    def _message(self, turn: SampledTurn) -> dict[str, Any]:
        parsed = self.parsed(turn)
        return answers.message(parsed.content, parsed.calls, parsed.ids)

    def _piece(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _ended(self, turn: SampledTurn) -> dict[str, Any]:
        known = None if self._tokenizer is None else answers.chat_logprobs(self._tokenizer, turn.completion)
        return {"logprobs": known, "finish_reason": answers.finish_reason(turn.completion, self.parsed(turn).calls)}
