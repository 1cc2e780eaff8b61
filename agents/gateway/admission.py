"""How many turns are sampled, or wait for the engine, at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from turntree.agents.gateway.http.errors import ApiError


class Admission:
    """Places for turns; a request that finds none is answered with when to come back. Not thread-safe."""

    def __init__(self, places: int) -> None:
        self.places = places
        """Turns at once."""
        self.taken = 0
        """Turns now."""
        self.closing = False
        """Whether the server ends, and takes no further turn."""

    @contextmanager
    def enter(self, turns: int) -> Iterator[None]:
        """Hold places for the turns of one request.

        Raises:
            ApiError: 400 if it has more turns than there are places at all, 429 if they are taken, 503 at the end.
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
