from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from turntree.agents.engines.protocol import TurnRequest


class PrecomputedRequests:
    """Mix-in for engines with priority scheduling: precomputed turns run after all others and can be aborted."""

    def __init__(self, *, priorities: bool, setting: str) -> None:
        """Store whether the engine schedules by priority, and the setting that enables it, for messages."""
        self._priorities, self._setting = priorities, setting
        self._ahead: dict[str, None] = {}

    async def abort_precomputed(self, most: int | None = None) -> None:
        """Abort up to ``most`` (``None``: all) precomputed requests, newest first; they keep their tokens.

        A request that has not reached the engine yet may escape: call again until all have ended.
        """
        names = [*reversed(self._ahead)][:most]
        if names:
            await self._abort(names)

    async def _abort(self, names: Sequence[str]) -> None:
        # Unknown ids must be ignored.
        raise NotImplementedError

    def _check_ahead(self, request: TurnRequest) -> None:
        if request.precomputed_for and not self._priorities:
            raise ValueError(
                f"a precomputed turn must come after all others, got one for step {request.precomputed_for} in an engine "
                f"that does not schedule by priority; start it with {self._setting}"
            )

    @contextmanager
    def _noted(self, name: str, *, ahead: bool) -> Iterator[None]:
        if ahead:
            self._ahead[name] = None
        try:
            yield
        finally:
            self._ahead.pop(name, None)
