"""Requests of precomputed turns in an engine that schedules by priority: they come after all others, and can be ended.

An engine notes each by its id. What is ended keeps the tokens that it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from turntree.agents.engines.protocol import TurnRequest


class PrecomputedRequests:
    """Part of an engine that takes ``TurnRequest.precomputed_for``."""

    def __init__(self, *, priorities: bool, setting: str) -> None:
        """Begin without any.

        Args:
            setting: The argument with which it does, as a message names it.
        """
        self._priorities, self._setting = priorities, setting
        self._ahead: dict[str, None] = {}

    async def abort_precomputed(self, most: int | None = None) -> None:
        """End requests of precomputed turns with the tokens that they have, the newest first.

        One that has not reached the engine yet may escape: call it again until all have ended.

        Args:
            most: Most requests ended; ``None`` is all.
        """
        names = [*reversed(self._ahead)][:most]
        if names:
            await self._abort(names)

    async def _abort(self, names: Sequence[str]) -> None:
        """Abort requests by their ids; unknown ones are left alone."""
        raise NotImplementedError

    def _check_ahead(self, request: TurnRequest) -> None:
        """Refuse to precompute where the turn would take places of others.

        Raises:
            ValueError: If the engine does not schedule by priority.
        """
        if request.precomputed_for and not self._priorities:
            raise ValueError(
                f"a precomputed turn must come after all others, got one for step {request.precomputed_for} in an engine "
                f"that does not schedule by priority; start it with {self._setting}"
            )

    @contextmanager
    def _noted(self, name: str, *, ahead: bool) -> Iterator[None]:
        """Note a request while it runs, if it is of a precomputed turn."""
        if ahead:
            self._ahead[name] = None
        try:
            yield
        finally:
            self._ahead.pop(name, None)
