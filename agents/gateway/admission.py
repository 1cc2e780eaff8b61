from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from turntree.agents.gateway.http.errors import ApiError


class Admission:
    """Limit how many turns are sampled or queued at once. Not thread-safe."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self.closing = False

    @contextmanager
    def enter(self, turns: int) -> Iterator[None]:
        """Reserve slots for the turns of one request.

        Raises:
            ApiError: 400 if the request needs more slots than exist, 429 if they are in use, 503 during shutdown.
        """
        if self.closing:
            raise ApiError(503, "the server ends; ask another one", code="closing", retry_after=5)
        if turns > self.places:
            raise ApiError(400, f"{turns} answers were asked for, at most {self.places} are sampled at once", param="n")
        if self.taken + turns > self.places:
            raise ApiError(429, f"{self.taken} turns are being sampled already; try again", code="busy", retry_after=1)
        self.taken += turns
        try:
            yield
        finally:
            self.taken -= turns
