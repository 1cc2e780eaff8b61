"""The engine as one program's gateway sees it: a training's own sampling and seeds, and an account of what was lost.

Invariant: whatever a program asks for, a turn is drawn at the temperature that the trainer believes. A turn that the
engine lost and nobody asked for again is kept in mind, so that no reward is made of what came after it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from dataclasses import replace

import numpy as np

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, Sampling, TurnRequest, derive_seed
from turntree.agents.errors import EngineAborted
from turntree.agents.gateway.http.errors import ApiError

_OWN = ("max_tokens", "stop_token_ids", "top_logprobs")
"""What a program decides of the sampling of its turns."""


class EpisodeTurns:
    """An ``Engine`` for the turns of one episode.

    Args:
        sampling: How they are sampled; ``max_tokens`` bounds each. With a seed each turn has its own, which depends
            on its prompt and on how often that was asked, and not on the order of several dialogues.
        most: Turns of the episode; ``None`` is no bound.
    """

    def __init__(self, engine: Engine, sampling: Sampling, *, most: int | None = None) -> None:
        self._engine, self._sampling, self._most = engine, sampling, most
        self._asked: Counter[bytes] = Counter()
        self._lost: dict[bytes, Exception] = {}
        self._running: set[asyncio.Task[Completion]] = set()
        self._closed = False
        self.full = False
        """Whether a further turn than the bound allows was asked for."""

    @property
    def lost(self) -> Exception | None:
        """What a turn was lost to that was not sampled later; ``None`` if there is none."""
        return next(iter(self._lost.values()), None)

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn.

        Raises:
            ApiError: 400 if the episode has had all its turns, 503 if it has ended.
            Exception: The engine's.
        """
        if self._closed:
            raise _ended()
        if self._most is not None and self._asked.total() >= self._most:
            self.full = True
            raise ApiError(400, f"the episode has had its {self._most} turns; end with an answer", code="max_turns")
        key = hashlib.blake2b(np.asarray(request.prompt_ids, np.int64).tobytes(), digest_size=8).digest()
        task = asyncio.ensure_future(self._engine.generate(self._as_trained(request, key)))
        self._asked[key] += 1
        self._running.add(task)
        try:
            done = await task
            if done.finish_reason is FinishReason.ABORT or not done.token_ids:
                raise EngineAborted("the engine gave a turn up")
        except asyncio.CancelledError:
            if self._closed and task.cancelled():
                raise _ended() from None
            raise
        except ValueError:  # the program asked for what the engine cannot do
            raise
        except Exception as error:
            self._lost[key] = error
            raise
        finally:
            self._running.discard(task)
        self._lost.pop(key, None)
        return done

    def close(self) -> None:
        """Sample nothing any more, for a program that nobody waits for."""
        self._closed = True
        for task in self._running:
            task.cancel()

    def _as_trained(self, request: TurnRequest, key: bytes) -> TurnRequest:
        own = {name: getattr(request.sampling, name) for name in _OWN}
        own["max_tokens"] = min(self._sampling.max_tokens, own["max_tokens"])
        seed = self._sampling.seed
        if seed is not None:
            seed = derive_seed(seed, int.from_bytes(key, "little"), self._asked[key])
        return replace(request, sampling=replace(self._sampling, **own, seed=seed))


def _ended() -> ApiError:
    return ApiError(503, "the episode has ended, and its turns with it", code="closing")
