from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turntree.spec_tree import TreeNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A path of the prefix tree without forks."""

    text: str
    count: int  #: turns that took this path
    share: float  #: fraction of the turns at the fork before it, in [0, 1]
    children: tuple[Branch, ...]  #: most frequent first
    hidden: int = 0  #: children left out


def branches(root: TreeNode, decode: Callable[[int], str], *, widest: int = 12) -> Branch:
    return _branch(root, decode, widest, before=root.count)


def _branch(node: TreeNode, decode: Callable[[int], str], widest: int, before: int) -> Branch:
    count = node.count
    text = "" if node.token < 0 else decode(node.token)
    while len(node.children) == 1 and node.children[0].count == count:
        node = node.children[0]
        text += decode(node.token)
    return Branch(
        text=text,
        count=count,
        share=count / before if before else 0.0,
        children=tuple(_branch(child, decode, widest, before=count) for child in node.children[:widest]),
        hidden=max(0, len(node.children) - widest),
    )
