from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class TreeNode:
    """One token on a path from the start of the turn, in the prefix tree of a dialogue state."""

    token: int  #: token id; -1 at the root
    count: int = 0  #: number of turns that pass through this node
    children: list[TreeNode] = field(default_factory=list)  #: next tokens, most frequent first

    @classmethod
    def from_turns(cls, turns: Iterable[Sequence[int]]) -> TreeNode:
        """Merge ``turns`` (token ids, shape (tokens,) each) into one tree."""
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
        stack = [root]  # a stack, because turns can be longer than Python's recursion limit
        while stack:
            node = stack.pop()
            node.children.sort(key=lambda c: (-c.count, c.token))
            stack.extend(node.children)
        return root

    def to_dict(self) -> dict[str, Any]:
        """Return nested dictionaries of JSON values."""
        top: dict[str, Any] = {}
        stack = [(self, top)]
        while stack:
            node, out = stack.pop()
            children: list[dict[str, Any]] = [{} for _ in node.children]
            out.update(token=node.token, count=node.count, children=children)
            stack.extend(zip(node.children, children, strict=True))
        return top
