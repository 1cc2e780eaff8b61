"""Groups of one worker that have ended and wait to be trained on: verified again again once for each version of the weights.

The trainer names the version of its step. A group of an earlier one is stale: it is verified again, and handed over again in
place of its old rows. Newer weights that the engines have already say nothing yet: until the trainer begins its next
step, what it was just trained on is still here, and would come back if it were verified again.
Where a step is trained on what was submitted first, the groups of later steps are left as they are: one judgement is
enough, by the weights of their own step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple


class EndedGroup(NamedTuple):
    """A group as it was handed over last."""

    row: dict[str, Any]
    keys: Sequence[str]
    """Names of its rows in verl's queue."""
    version: int
    """Version of the weights that all of its turns are of."""


class InterruptedGroups:
    """By verl's name of each group; see the module's docstring."""

    def __init__(self) -> None:
        self.ended: dict[str, EndedGroup] = {}
        self._handing: set[str] = set()
        """Groups that are verified again or on their way to the queue."""
        self._version = 0
        self._due: Container[str] | None = None
        self.listing = asyncio.Lock()
        """Held from the question what verl's queue holds to ``begin_step``: an older answer does not come last."""

    def begin_step(self, version: int, held: Container[str], due: Container[str] | None = None) -> list[str]:
        """A step of this version of the weights begins; returns, and forgets, the groups that were trained on.

        Args:
            version: Updates that the trainer has made.
            held: Groups that verl's queue holds.
            due: Those that the step is trained on; ``None`` if all may be.
        """
        self._version, self._due = version, due
        trained = [uid for uid in self.ended if uid not in held and uid not in self._handing]
        for uid in trained:
            del self.ended[uid]
        return trained

    def take_stale(self) -> list[str]:
        """The groups to be verified again now. They are on their way until ``handed_over``."""
        stale = [uid for uid, one in self.ended.items() if one.version < self._version and uid not in self._handing]
        stale = [uid for uid in stale if self._due is None or uid in self._due]
        self._handing |= set(stale)
        return stale

    def end(self, uid: str, group: EndedGroup) -> Sequence[str] | None:
        """A group has ended, or was verified again, and is on its way; returns the names of the rows that it replaces, ``None``
        if it was not handed over before."""
        self._handing.add(uid)
        before = self.ended[uid].keys if uid in self.ended else None
        self.ended[uid] = group
        return before

    def forget(self, uid: str) -> None:
        """A group is left out, whether it was handed over before or not."""
        self.ended.pop(uid, None)
        self._handing.discard(uid)

    def handed_over(self, uids: Iterable[str]) -> None:
        """Groups have arrived in the queue."""
        self._handing.difference_update(uids)
