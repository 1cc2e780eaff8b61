"""An index of tokens by slot that finds the longest stored prefix of a prompt.

Slots are indexed by chained hashes of blocks of their tokens; a candidate is
then compared token by token, so a hash collision costs time, never
correctness. The index knows nothing of keys, values or requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

BLOCK = 8


class PrefixMatch(NamedTuple):
    """The slot with the longest common prefix."""

    slot: int
    """The slot, -1 if there is none."""
    length: int
    """Tokens in common."""


class PrefixIndex:
    """Token sequences by slot."""

    def __init__(self) -> None:
        self._tokens: dict[int, Sequence[int]] = {}
        self._chains: dict[int, list[int]] = {}
        self._slots: dict[int, dict[int, None]] = {}

    def put(self, slot: int, tokens: Sequence[int]) -> None:
        """Record that ``slot`` holds ``tokens``, replacing what it held before."""
        self.remove(slot)
        chain = _chain(tokens)
        self._tokens[slot] = tokens
        self._chains[slot] = chain
        for key in chain:
            self._slots.setdefault(key, {})[slot] = None

    def remove(self, slot: int) -> None:
        """Remove the tokens of ``slot``."""
        self._tokens.pop(slot, None)
        for key in self._chains.pop(slot, ()):
            holders = self._slots[key]
            del holders[slot]
            if not holders:
                del self._slots[key]

    def tokens(self, slot: int) -> Sequence[int]:
        """Tokens of ``slot``."""
        return self._tokens.get(slot, ())

    def match(self, prompt: Sequence[int], candidates: int = 4) -> PrefixMatch:
        """The slot with the longest common prefix, among the newest ``candidates`` of the longest
        chain of blocks. Prefixes shorter than a block are not found."""
        holders: dict[int, None] = {}
        for key in _chain(prompt):
            found = self._slots.get(key)
            if not found:
                break
            holders = found
        best = PrefixMatch(-1, 0)
        for slot, _ in zip(reversed(holders), range(candidates), strict=False):
            length = common_prefix(self._tokens[slot], prompt)
            if length > best.length:
                best = PrefixMatch(slot, length)
        return best


def _chain(tokens: Sequence[int]) -> list[int]:
    chain, key = [], 0
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        key = hash((key, *tokens[end - BLOCK : end]))
        chain.append(key)
    return chain


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Number of tokens that two sequences share from the start."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
