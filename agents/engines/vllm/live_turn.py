"""The drafter's record of a live request, kept from step to step so that no prompt is read twice.

Invariant: ``seen`` positions of the request are known to the session; a step
appends tokens after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turntree.agents.engines.drafting.session import DraftTurn
from turntree.spec_tree.state import DialogueState


@dataclass(slots=True, kw_only=True, eq=False)
class LiveTurn(DraftTurn):
    """One live request."""

    request: Any
    """vLLM's own object of it: another one under the same id is another request."""
    prompt: int
    """Tokens of the prompt, without those at its end that are the turn's."""
    stops: frozenset[int]
    """Tokens that end the turn."""
    least: int
    """Least length of the turn in tokens, before which no stop token ends it."""
    most: int
    """Most tokens of the turn, within the longest context."""
    by_text: bool
    """Whether a stop string may end it, which only vLLM's front end sees."""
    state: DialogueState | None = None
    """The dialogue state that it begins in."""
    said: list[int] = field(default_factory=list)
    """Its tokens so far."""
    drafted: int = 0
    """Tokens proposed for the coming step."""
    by_guess: bool = False
    """Whether the proposal is from the caller's guess."""
    step: int = -1
    """The last step in which it sampled."""
    hits: int = 0
    """Draft tokens accepted in it."""
    verify_steps: int = 0
    """Steps in which it sampled."""
    offered: int = 0
    """Draft tokens that were verified."""
    accepted: int = 0
    """Draft tokens that the policy itself sampled."""

    @property
    def seen(self) -> int:
        """Tokens of prompt and turn that the session knows."""
        return self.prompt + self.committed

    @property
    def counters(self) -> tuple[int, int, int]:
        """Verify steps, verified draft tokens, accepted ones."""
        return self.verify_steps, self.offered, self.accepted

    def verified(self, tokens: Sequence[int], step: int) -> None:
        """Count the tokens sampled in ``step``; drafts proposed before a pause were never verified."""
        if step != self.step + 1:
            self.drafted = 0
        self.step = step
        self.hits = min(len(tokens) - 1, self.drafted)
        self.verify_steps += 1
        self.offered += self.drafted
        self.accepted += self.hits

    def complete(self, last: int) -> bool:
        """Whether the turn is over, given its last token ``last``."""
        return self._ends(last, self.committed)

    def own(self, tokens: list[int]) -> list[int]:
        """Those of ``tokens`` that belong to the turn: if its last token was drafted, a sampled one follows it."""
        for index, token in enumerate(tokens):
            if self._ends(token, self.committed + index + 1):
                return tokens[: index + 1]
        return tokens

    def room(self, most: int) -> int:
        """Useful draft tokens: the token after them still belongs to the turn."""
        return max(0, min(most, self.most - self.committed - 1))

    def cut(self, draft: list[int]) -> list[int]:
        """``draft`` up to its first stop token."""
        if self.stops and not self.stops.isdisjoint(draft):
            end = next(i for i, token in enumerate(draft) if token in self.stops)
            return draft[: end + 1]
        return draft

    def _ends(self, token: int, length: int) -> bool:
        """Whether ``token`` is the last of a turn that is ``length`` tokens long with it."""
        return length >= self.most or (token in self.stops and length >= self.least)
