"""An episode and a prefix tree, split into the pieces that the report's page shows.

Nothing here is markup: the page's template escapes every text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from turntree.agents.episodes.episode import Episode
from turntree.envs import Role
from turntree.spec_tree import TreeNode


class Piece(NamedTuple):
    """One token of the policy."""

    text: str
    accepted: bool
    """Whether it was drafted and the policy sampled it too."""
    probability: float
    """Probability under the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubble:
    """One message."""

    role: Role
    """Role of the speaker."""
    text: str
    """Text of the message; the policy's own text is in ``pieces`` as well."""
    pieces: tuple[Piece, ...] = ()
    """The policy's tokens."""
    verify_steps: int = 0
    """Forward passes that the policy's message took."""

    @property
    def accepted(self) -> int:
        """Tokens that were drafted and accepted."""
        return sum(piece.accepted for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A path of the tree without forks."""

    text: str
    count: int
    """Turns that went through it."""
    share: float
    """Share of the turns that reached the fork before it, in [0, 1]."""
    children: tuple[Branch, ...]
    """Branches at the fork, the most frequent first."""
    hidden: int = 0
    """Children that are left out."""


def bubbles(episode: Episode, decode: Callable[[int], str]) -> list[Bubble]:
    """The messages of ``episode`` in order."""
    spoken = iter(episode.turns)
    made = []
    opening = len(episode.messages) - sum(1 + len(turn.observation) for turn in episode.turns)
    for number, message in enumerate(episode.messages):
        turn = next(spoken, None) if number >= opening and message.role is Role.ASSISTANT else None
        if turn is None:
            made.append(Bubble(role=message.role, text=message.content))
            continue
        completion = turn.completion
        flags = completion.accepted or (False,) * len(completion.token_ids)
        pieces = tuple(
            Piece(decode(token), accepted, math.exp(logprob))
            for token, accepted, logprob in zip(completion.token_ids, flags, completion.logprobs, strict=True)
        )
        made.append(
            Bubble(
                role=message.role,
                text=message.content,
                pieces=pieces,
                verify_steps=completion.draft.verify_steps,
            )
        )
    return made


def branches(root: TreeNode, decode: Callable[[int], str], *, widest: int = 12) -> Branch:
    """``root`` with paths that do not fork joined."""
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
