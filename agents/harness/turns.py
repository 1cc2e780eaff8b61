"""The engine of one program's gateway: applies the trainer's sampling parameters and seeds, and records failed turns.

Invariant: turns are sampled at the trainer's temperature, even if the program requests another temperature. If a turn
failed and the program did not request it again, the failure is kept, so that the episode fails and gets no reward.
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

_PROGRAM_PARAMETERS = ("max_tokens", "stop_token_ids", "top_logprobs")  #: sampling parameters that a program may set


class EpisodeTurns:
    """An ``Engine`` for the turns of one episode.

    Args:
        sampling: The trainer's sampling parameters; ``max_tokens`` limits each turn. If ``seed`` is set, a turn's seed
            depends on its prompt and on how often that prompt was sent, not on the order of concurrent dialogues.
        most: Greatest number of turns in the episode; ``None`` sets no limit.
    """

    def __init__(self, engine: Engine, sampling: Sampling, *, most: int | None = None) -> None:
        self._engine, self._sampling, self._max_turns = engine, sampling, most
        self._requests: Counter[bytes] = Counter()
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
            ApiError: 400 if the episode has used all its turns, 503 if the episode has ended.
            Exception: From the engine.
        """
        if self._closed:
            raise _ended_error()
        if self._max_turns is not None and self._requests.total() >= self._max_turns:
            self.full = True
            raise ApiError(
                400, f"the episode's limit of {self._max_turns} turns is reached; answer now", code="max_turns"
            )
        key = hashlib.blake2b(np.asarray(request.prompt_ids, np.int64).tobytes(), digest_size=8).digest()
        task = asyncio.ensure_future(self._engine.generate(self._trainer_request(request, key)))
        self._requests[key] += 1
        self._running.add(task)
        try:
            completion = await task
            if completion.finish_reason is FinishReason.ABORT or not completion.token_ids:
                raise EngineAborted("the engine aborted a turn")
        except asyncio.CancelledError:
            # The task was cancelled by ``close``, not by the client.
            if self._closed and task.cancelled():
                raise _ended_error() from None
            raise
        except ValueError:
            # The engine refused the program's request as invalid. This is no failure of the engine.
            raise
        except Exception as error:
            self._failed[key] = error
            raise
        finally:
            self._running.discard(task)
        # If this turn had failed before, the program has now repeated it successfully, so the failure no longer counts.
        self._failed.pop(key, None)
        return completion

    def close(self) -> None:
        # Refuse further turns and cancel running ones.
        self._closed = True
        for task in self._running:
            task.cancel()

    def _trainer_request(self, request: TurnRequest, key: bytes) -> TurnRequest:
        requested = {name: getattr(request.sampling, name) for name in _PROGRAM_PARAMETERS}
        requested["max_tokens"] = min(self._sampling.max_tokens, requested["max_tokens"])
        seed = self._sampling.seed
        if seed is not None:
            seed = derive_seed(seed, int.from_bytes(key, "little"), self._requests[key])
        return replace(request, sampling=replace(self._sampling, **requested, seed=seed))


def _ended_error() -> ApiError:
    return ApiError(503, "the episode has ended", code="closing")
