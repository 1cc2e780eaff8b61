"""Text of a turn while its tokens arrive: complete characters, stop strings found, tool calls held back.

Invariant: the shown text is a prefix of the turn's text, however many tokens arrive at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Decode = Callable[[Sequence[int]], str]
_HALF = "\ufffd"
_WINDOW = 8  #: tokens after which earlier ones need not be decoded again
_BYTE = "<0xFF>"


def byte_token(tokenizer: Any) -> int | None:
    """Return the token of byte 0xFF in a vocabulary with byte fallback, else ``None``.

    Such a vocabulary decodes a run of bytes as a whole: an invalid byte turns the whole run into ``U+FFFD``.
    """
    found = tokenizer.convert_tokens_to_ids(_BYTE)
    return found if found is not None and tokenizer.convert_ids_to_tokens(found) == _BYTE else None


class TurnText:
    """The text of one turn.

    Args:
        stops: Strings that end the turn; a stop string and what follows are not part of the text.
        byte: The ``byte_token`` of the vocabulary.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = (), *, byte: int | None = None) -> None:
        self._decode, self._byte = decode, byte
        self.stops = tuple(stops)
        self.tokens: list[int] = []  #: up to the token that completed a stop string
        self.text = ""  #: the part that later tokens cannot change, without the stop string
        self.stop: str | None = None  #: the stop string that was found
        self._done = ""  # the text of the tokens before `_read`; those from `_from` on are decoded with what follows
        self._from = self._read = self._skip = 0

    @property
    def stopped(self) -> bool:
        return self.stop is not None

    def add(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.stopped:
                return
            self.tokens.append(token)
            self._read_on()

    def end(self, tokens: Sequence[int] = ()) -> None:
        """Finish the turn with ``tokens``; incomplete characters are kept as decoded."""
        if self.stops:
            self.add(tokens)
        else:
            self.tokens += tokens
        if not self.stopped:
            whole = self._decode(self.tokens)
            if not whole.startswith(self.text):  # a decoder that looks further back than the window: shown is shown
                whole = self._done + self._decode(self.tokens[self._from :])[self._skip :]
            if not self._find_stop(whole):
                self.text = whole

    def _read_on(self) -> None:
        window = self.tokens[self._from :]
        now = self._decode(window)
        whole = now.rstrip(_HALF)
        if self._find_stop(self._done + whole[self._skip :]):
            return
        if self._byte is not None:
            whole = _shared(whole, self._decode([*window, self._byte]))
        self.text = self._done + whole[self._skip :]
        if whole == now and len(now) > self._skip and len(self.tokens) - self._read >= _WINDOW:
            self._done = self.text
            self._from, self._read = self._read, len(self.tokens)
            self._skip = len(self._decode(self.tokens[self._from :]))

    def _find_stop(self, text: str) -> bool:
        places = [(at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if places:
            at, self.stop = min(places)
            self.text = text[:at]
        return self.stopped


def _shared(text: str, other: str) -> str:
    same = (at for at, (a, b) in enumerate(zip(text, other, strict=False)) if a != b)
    return text[: next(same, min(len(text), len(other)))]


def settled(text: str, marks: Sequence[str]) -> str:
    """Return the prefix of ``text`` before any mark and before a possible start of one.

    >>> settled("so it is 4 <to", ["<tool_call>", "END"])
    'so it is 4 '
    """
    end = len(text)
    for mark in marks:
        at = text.find(mark)
        if at < 0:
            at = next((len(text) - n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), len(text))
        end = min(end, at)
    return text[:end]
