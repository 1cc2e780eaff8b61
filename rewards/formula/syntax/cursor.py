from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from turntree.rewards.formula.syntax.nodes import Node
from turntree.rewards.formula.syntax.problems import Malformed
from turntree.rewards.formula.syntax.tokens import Token
from turntree.rewards.limits import MAX_NESTING, LimitExceeded

_END = Token("end of text", "")


class Cursor:
    """Reads tokens in order and tracks the open brackets; base class of the parsers."""

    def __init__(self, tokens: list[Token], functions: frozenset[str] = frozenset()) -> None:
        """Start at the first token.

        Args:
            tokens: The tokens; the list is changed only if a number must be split into digits.
            functions: Names that are functions wherever brackets follow them.
        """
        self.functions = functions
        self.tokens = tokens
        self.position = 0
        self.depth = 0
        self.bars = 0
        self.in_braces = False
        self.conditional = False
        self.bracketed_at: dict[int, tuple[Node, int]] = {}
        self.bound: list[str] = []

    @property
    def next(self) -> Token:
        return self.tokens[self.position] if self.position < len(self.tokens) else _END

    def ahead(self, distance: int = 1) -> Token:
        position = self.position + distance
        return self.tokens[position] if position < len(self.tokens) else _END

    def take(self) -> Token:
        token = self.next
        if token is _END:
            raise Malformed("the text ends too early")
        self.position += 1
        return token

    def at(self, *texts: str) -> bool:
        token = self.next
        return token.kind in ("op", "cmd") and token.text in texts

    def accept(self, *texts: str) -> bool:
        if self.at(*texts):
            self.position += 1
            return True
        return False

    def expect(self, *texts: str) -> str:
        if not self.at(*texts):
            raise Malformed(f"expected {' or '.join(texts)}, got {self.next.text!r}")
        return self.take().text

    @contextmanager
    def nested(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise LimitExceeded(f"nested deeper than {MAX_NESTING}")
        yield
        self.depth -= 1
