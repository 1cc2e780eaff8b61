"""A position in a list of tokens, and the brackets open there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from turntree.rewards.formula.syntax.nodes import Node
from turntree.rewards.formula.syntax.problems import Malformed
from turntree.rewards.formula.syntax.tokens import Token
from turntree.rewards.limits import MAX_NESTING, LimitExceeded

_END = Token("end of text", "")


class Cursor:
    """Reads tokens one after another; the parsers build on it."""

    def __init__(self, tokens: list[Token], functions: frozenset[str] = frozenset()) -> None:
        """Begin at the first token.

        Args:
            tokens: Tokens to read; changed only where one number token must be split into digits.
            functions: Names that are known to be functions, whatever follows them in brackets.
        """
        self.functions = functions
        self.tokens = tokens
        self.place = 0
        self.depth = 0
        self.bars = 0
        self.in_braces = False
        self.conditional = False
        self.bracketed_at: dict[int, tuple[Node, int]] = {}
        self.bound: list[str] = []

    @property
    def next(self) -> Token:
        """The next token; one of kind ``end of text`` after the last."""
        return self.tokens[self.place] if self.place < len(self.tokens) else _END

    def ahead(self, distance: int = 1) -> Token:
        """The token at a distance."""
        place = self.place + distance
        return self.tokens[place] if place < len(self.tokens) else _END

    def take(self) -> Token:
        """Return the next token and move past it."""
        token = self.next
        if token is _END:
            raise Malformed("the text ends too early")
        self.place += 1
        return token

    def at(self, *texts: str) -> bool:
        """Whether the next token is a sign or command with one of these texts."""
        token = self.next
        return token.kind in ("op", "cmd") and token.text in texts

    def accept(self, *texts: str) -> bool:
        """Move past a sign or command if it is next."""
        if self.at(*texts):
            self.place += 1
            return True
        return False

    def expect(self, *texts: str) -> str:
        """Move past a sign or command that must be next.

        Raises:
            Malformed: Something else comes.
        """
        if not self.at(*texts):
            raise Malformed(f"expected {' or '.join(texts)}, got {self.next.text!r}")
        return self.take().text

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Enter one level of nesting.

        Raises:
            LimitExceeded: Too many levels.
        """
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise LimitExceeded(f"nested deeper than {MAX_NESTING}")
        yield
        self.depth -= 1
