"""The text of a turn while its tokens arrive: whole characters alone, stop strings found, calls held back.

Invariant: what was shown is a beginning of the turn's text, unless a tokenizer decodes the same tokens otherwise
once more follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
_HALF = "\ufffd"
_LONGEST = 16
"""Tokens that may wait for the rest of a character; a character has at most four bytes."""


class TurnText:
    """Text of one turn.

    Args:
        decode: Text of token ids.
        stops: Texts that end the turn; they and what follows are not part of its text.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self.stops = tuple(stops)
        self.tokens: list[int] = []
        """Tokens so far, up to the one with which a stop string was complete."""
        self.text = ""
        """Their text, as far as its characters are whole, without the stop string."""
        self.stopped = False
        """Whether a stop string was found."""
        self._from = self._read = 0

    def add(self, tokens: Sequence[int]) -> None:
        """Hear further tokens; those after a stop string are ignored."""
        if not self.stops:
            self.tokens += tokens
            self._decode_new()
            return
        for token in tokens:
            if self.stopped:
                return
            self.tokens.append(token)
            self._decode_new()

    def end(self) -> None:
        """The turn is over: half characters count as they are."""
        if not self.stopped:
            self.text = self._decode(self.tokens)
            self._find_stop()

    def _decode_new(self) -> None:
        before = self._decode(self.tokens[self._from : self._read])
        now = self._decode(self.tokens[self._from :])
        if now.endswith(_HALF) and len(self.tokens) - self._read < _LONGEST:
            return
        self.text += now[len(before) :]
        self._from, self._read = self._read, len(self.tokens)
        self._find_stop()

    def _find_stop(self) -> None:
        places = [at for stop in self.stops if (at := self.text.find(stop)) >= 0]
        if places:
            self.text, self.stopped = self.text[: min(places)], True


def settled(text: str, marks: Sequence[str]) -> str:
    """The beginning of ``text`` that has no mark and begins none, whatever follows.

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
