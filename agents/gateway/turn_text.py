"""Decodes a turn while its tokens arrive: keeps complete characters, finds stop strings, holds back tool calls.

Invariant: the text shown so far is always a prefix of the turn's final text, however many tokens arrive at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Decode = Callable[[Sequence[int]], str]
_REPLACEMENT = "\ufffd"
_WINDOW = 8  #: tokens after which earlier tokens need not be decoded again
_BYTE = "<0xFF>"


def byte_token(tokenizer: Any) -> int | None:
    """Return the token of byte 0xFF in a vocabulary with byte fallback, else ``None``.

    Such a vocabulary decodes a run of bytes as a whole: an invalid byte turns the whole run into ``U+FFFD``.
    """
    token = tokenizer.convert_tokens_to_ids(_BYTE)
    return token if token is not None and tokenizer.convert_ids_to_tokens(token) == _BYTE else None


class TurnText:
    """The text of one turn.

    Args:
        stops: Strings that end the turn; the text ends before the stop string.
        byte: The ``byte_token`` of the vocabulary.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = (), *, byte: int | None = None) -> None:
        self.decode, self._byte = decode, byte
        self.stops = tuple(stops)
        self.tokens: list[int] = []  #: up to the token that completed a stop string
        self.text = ""  #: the part that later tokens cannot change, without the stop string
        self.stop: str | None = None  #: the stop string that was found
        # `_done`: text of the tokens before `_read`. Tokens from `_from` on (the window) are decoded again with each
        # new token; the first `_skip` characters of the window's text are in `_done` already.
        self._done = ""
        self._from = self._read = self._skip = 0

    @property
    def stopped(self) -> bool:
        return self.stop is not None

    def add(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self.stopped:
                return
            self.tokens.append(token)
            self._decode_last()

    def end(self, tokens: Sequence[int] = ()) -> None:
        """Finish the turn with ``tokens``; incomplete characters are kept as decoded."""
        if self.stops:
            self.add(tokens)
        else:
            self.tokens += tokens
        if not self.stopped:
            whole = self.decode(self.tokens)
            # Decoding the whole turn changed text that was already sent, so continue from the sent text.
            if not whole.startswith(self.text):
                whole = self._done + self.decode(self.tokens[self._from :])[self._skip :]
            if not self._find_stop(whole):
                self.text = whole

    def _decode_last(self) -> None:
        window = self.tokens[self._from :]
        decoded = self.decode(window)
        # A trailing U+FFFD may be the first bytes of a character whose other bytes have not arrived.
        whole = decoded.rstrip(_REPLACEMENT)
        if self._find_stop(self._done + whole[self._skip :]):
            return
        # If another byte can still change the text (see ``byte_token``), keep only the part that it does not change.
        if self._byte is not None:
            whole = _common_prefix(whole, self.decode([*window, self._byte]))
        self.text = self._done + whole[self._skip :]
        # Move the window forward, but only at a character boundary.
        if whole == decoded and len(decoded) > self._skip and len(self.tokens) - self._read >= _WINDOW:
            self._done = self.text
            self._from, self._read = self._read, len(self.tokens)
            self._skip = len(self.decode(self.tokens[self._from :]))

    def _find_stop(self, text: str) -> bool:
        matches = [(start, stop) for stop in self.stops if (start := text.find(stop)) >= 0]
        if matches:
            start, self.stop = min(matches)
            self.text = text[:start]
        return self.stopped


def _common_prefix(text: str, other: str) -> str:
    differences = (start for start, (a, b) in enumerate(zip(text, other, strict=False)) if a != b)
    return text[: next(differences, min(len(text), len(other)))]


def settled(text: str, marks: Sequence[str]) -> str:
    """Return the prefix of ``text`` before any mark, and before an end that may be the start of a mark.

    >>> settled("so it is 4 <to", ["<tool_call>", "END"])
    'so it is 4 '
    """
    end = len(text)
    for mark in marks:
        start = text.find(mark)
        if start < 0:
            start = next((len(text) - n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), len(text))
        end = min(end, start)
    return text[:end]
