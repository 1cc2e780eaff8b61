"""The engine as one program's gateway sees it: the training's own sampling, seeds, and failed turns.

Invariant: whatever a program requests, turns are sampled at the trainer's temperature. A failed turn that was not
sampled again is remembered, so that no reward is computed from what followed it.
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

_OWN = ("max_tokens", "stop_token_ids", "top_logprobs")  #: sampling parameters that a program may set


class EpisodeTurns:
    """An ``Engine`` for the turns of one episode.

    Args:
        sampling: How turns are sampled; ``max_tokens`` limits each. With a seed, each turn's own seed depends on its
            prompt and how often that prompt was sent, not on the order of concurrent dialogues.
        most: Turns in the episode; ``None`` sets no limit.
    """

    def __init__(self, engine: Engine, sampling: Sampling, *, most: int | None = None) -> None:
        self._engine, self._sampling, self._most = engine, sampling, most
        self._asked: Counter[bytes] = Counter()
        self._failed: dict[bytes, Exception] = {}
        self._running: set[asyncio.Task[Completion]] = set()
        self._closed = False
        self.full = False  #: whether the program asked for more turns than the limit

    @property
    def failure(self) -> Exception | None:
        return next(iter(self._failed.values()), None)

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn.

        Raises:
            ApiError: 400 if the episode has used all its turns, 503 if it has ended.
            Exception: From the engine.
        """
        if self._closed:
            raise _ended()
        if self._most is not None and self._asked.total() >= self._most:
            self.full = True
            raise ApiError(400, f"the episode's limit of {self._most} turns is reached; answer now", code="max_turns")
        key = hashlib.blake2b(np.asarray(request.prompt_ids, np.int64).tobytes(), digest_size=8).digest()
        task = asyncio.ensure_future(self._engine.generate(self._as_trained(request, key)))
        self._asked[key] += 1
        self._running.add(task)
        try:
            done = await task
            if done.finish_reason is FinishReason.ABORT or not done.token_ids:
                raise EngineAborted("the engine aborted a turn")
        except asyncio.CancelledError:
            # Cancelled by `close`, not by the client.
            if self._closed and task.cancelled():
                raise _ended() from None
            raise
        except ValueError:
            # The program's request is invalid, which is not the engine's failure.
            raise
        except Exception as error:
            self._failed[key] = error
            raise
        finally:
            self._running.discard(task)
        # The program repeated the failed turn successfully.
        self._failed.pop(key, None)
        return done

    def close(self) -> None:
        # Refuse further turns and cancel running ones.
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
    return ApiError(503, "the episode has ended", code="closing")
