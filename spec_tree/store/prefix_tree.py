"""The explicit prefix tree of one dialogue state, for inspection by people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class TreeNode:
    """One token on a path from the beginning of the turn."""

    token: int
    """Token id; -1 at the root."""
    count: int = 0
    """Number of turns that pass through this node."""
    children: list[TreeNode] = field(default_factory=list)
    """Next tokens, most frequent first."""

    @classmethod
    def from_turns(cls, turns: Iterable[Sequence[int]]) -> TreeNode:
        """Merge ``turns`` (token ids, each of shape (tokens,)) into one tree."""
        root = cls(token=-1)
        for turn in turns:
            node = root
            node.count += 1
            for token in turn:
                child = next((c for c in node.children if c.token == token), None)
                if child is None:
                    child = cls(token=token)
                    node.children.append(child)
                child.count += 1
                node = child
        stack = [root]
        while stack:
            node = stack.pop()
            node.children.sort(key=lambda c: (-c.count, c.token))
            stack.extend(node.children)
        return root

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionaries of JSON values."""
        top: dict[str, Any] = {}
        stack = [(self, top)]
        while stack:
            node, out = stack.pop()
            children: list[dict[str, Any]] = [{} for _ in node.children]
            out.update(token=node.token, count=node.count, children=children)
            stack.extend(zip(node.children, children, strict=True))
        return top
