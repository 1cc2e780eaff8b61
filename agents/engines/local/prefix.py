"""Index of tokens by slot that finds the longest stored prefix of a prompt.

Slots are indexed by chained hashes of blocks of their tokens. Candidates are compared token by token, so a
hash collision costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple

BLOCK = 8


class PrefixMatch(NamedTuple):
    slot: int  #: slot with the longest common prefix, -1 for none
    length: int  #: tokens in common


class PrefixIndex:
    def __init__(self) -> None:
        self._tokens: dict[int, Sequence[int]] = {}
        self._chains: dict[int, list[int]] = {}
        self._slots: dict[int, dict[int, None]] = {}

    def put(self, slot: int, tokens: Sequence[int]) -> None:
        """Record that ``slot`` holds ``tokens``, replacing its earlier tokens."""
        self.remove(slot)
        chain = _chain(tokens)
        self._tokens[slot] = tokens
        self._chains[slot] = chain
        for key in chain:
            self._slots.setdefault(key, {})[slot] = None

    def remove(self, slot: int) -> None:
        self._tokens.pop(slot, None)
        for key in self._chains.pop(slot, ()):
            holders = self._slots[key]
            del holders[slot]
            if not holders:
                del self._slots[key]

    def tokens(self, slot: int) -> Sequence[int]:
        return self._tokens.get(slot, ())

    def match(self, prompt: Sequence[int], *, free: Container[int] = (), candidates: int = 8) -> PrefixMatch:
        """Return the slot with the longest common prefix; prefixes shorter than a block are not found.

        Looks at the newest ``candidates`` slots of each of the two longest chains of blocks.

        Args:
            free: Slots that may be continued in place. Such a slot, if all its tokens are a prefix of the prompt, is
                preferred to another slot that shares less than one block more.
        """
        chains: list[dict[int, None]] = []
        for key in _chain(prompt):
            found = self._slots.get(key)
            if not found:
                break
            chains.append(found)
        best, worth = PrefixMatch(-1, 0), 0
        for holders in reversed(chains[-2:]):
            for slot, _ in zip(reversed(holders), range(candidates), strict=False):
                tokens = self._tokens[slot]
                length = common_prefix(tokens, prompt)
                in_place = length == len(tokens) and slot in free
                if length + in_place * (BLOCK - 1) > worth:
                    best, worth = PrefixMatch(slot, length), length + in_place * (BLOCK - 1)
        return best


def _chain(tokens: Sequence[int]) -> list[int]:
    chain, key = [], 0
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        key = hash((key, *tokens[end - BLOCK : end]))
        chain.append(key)
    return chain


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
