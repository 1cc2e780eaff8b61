"""One worker's ended groups that wait to be trained on, re-verified once per version of the weights.

The trainer names the version of its step. A group of an earlier version is stale: it is re-verified, and its new rows
replace the old ones. Newer weights in the engines do not count until the trainer begins its next step. Until then the
groups it was just trained on are still here, and would come back if they were re-verified.

If a step is trained on the groups that were submitted first, groups of later steps stay as they are: one
re-verification under the weights of their own step is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple


class EndedGroup(NamedTuple):
    """A group as it was last handed over."""

    row: dict[str, Any]
    keys: Sequence[str]  #: names of its rows in verl's queue
    version: int  #: weight version of all its turns


class InterruptedGroups:
    def __init__(self) -> None:
        self.ended: dict[str, EndedGroup] = {}
        self._handing: set[str] = set()  # being re-verified, or on their way to the queue
        self._version = 0
        self._due: Container[str] | None = None
        # Held from listing verl's queue until ``begin_step``, so that an older listing is never applied last.
        self.listing = asyncio.Lock()

    def begin_step(self, version: int, held: Container[str], due: Container[str] | None = None) -> list[str]:
        """Begin a step with weights ``version``; return, and forget, the groups that were trained on."""
        # ``held`` are the groups in verl's queue; the step is trained on ``due``, or on any group if it is ``None``.
        self._version, self._due = version, due
        trained = [uid for uid in self.ended if uid not in held and uid not in self._handing]
        for uid in trained:
            del self.ended[uid]
        return trained

    def take_stale(self) -> list[str]:
        """Return the groups to re-verify now. They count as in transit until ``handed_over``."""
        stale = [uid for uid, one in self.ended.items() if one.version < self._version and uid not in self._handing]
        stale = [uid for uid in stale if self._due is None or uid in self._due]
        self._handing |= set(stale)
        return stale

    def end(self, uid: str, group: EndedGroup) -> Sequence[str] | None:
        """Keep a group that is in transit now; return the names of rows that it replaces, if any."""
        self._handing.add(uid)
        before = self.ended[uid].keys if uid in self.ended else None
        self.ended[uid] = group
        return before

    def forget(self, uid: str) -> None:
        self.ended.pop(uid, None)
        self._handing.discard(uid)

    def handed_over(self, uids: Iterable[str]) -> None:
        self._handing.difference_update(uids)
