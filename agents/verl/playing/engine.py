"""verl's rollout servers as a turntree engine, so that training plays episodes by the same loop as everything else.

One object serves one episode: verl routes all turns with one request id to the
same server, which has the dialogue's keys and values. If that server is lost, so is
the episode, which the player tries again; with a first turn nothing is lost, and it is
requested until a server answers.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

from ray.exceptions import RayActorError

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.agents.errors import EngineLost
from turntree.agents.verl.playing.backends import server_call
from turntree.agents.verl.serving.verl_types import draft_of

logger = logging.getLogger(__name__)


class VerlEngine:
    """An ``Engine`` over ``server_manager.generate``.

    Args:
        backend: ``rollout.name``.
        patience: Seconds in which a lost server may come back, or verl's router find another one.
        look_seconds: Seconds between two requests meanwhile.
    """

    def __init__(
        self, server_manager: Any, *, backend: str, patience: float = 600.0, look_seconds: float = 1.0
    ) -> None:
        self._server_manager = server_manager
        self._backend = backend
        self._request_id = uuid4().hex
        self._patience = patience
        self._look_seconds = look_seconds
        self._began = False

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn; the request's ``draft`` is not sent.

        Raises:
            RuntimeError: If the server returned no log-probabilities.
            EngineLost: If the server is lost after an earlier turn, or no server samples the first one in time.
        """
        sampling = request.sampling
        output = await self._first(request) if not self._began else await self._ask(request)
        self._began = True
        if output.log_probs is None:
            raise RuntimeError("the rollout server returned no log-probabilities; set rollout.calculate_log_probs=True")
        extra = output.extra_fields
        return Completion(
            token_ids=tuple(output.token_ids),
            logprobs=tuple(output.log_probs),
            finish_reason=_finish_reason(output, sampling),
            draft=draft_of(extra),
            levels=extra.get("levels") or "",
            behaviour_logprobs=tuple(extra.get("behaviour_logprobs") or ()),
            accepted=tuple(extra.get("accepted") or ()),
            cached_tokens=extra.get("num_cached_tokens") or 0,
            weights_version=extra.get("global_steps") or 0,
        )

    async def _first(self, request: TurnRequest) -> Any:
        """The dialogue's first turn, from whichever server samples it in time."""
        deadline = asyncio.get_running_loop().time() + self._patience
        while True:
            try:
                return await self._ask(request)
            except EngineLost as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                logger.info("a dialogue's first turn is requested again: %s", error)
            await asyncio.sleep(self._look_seconds)

    async def _ask(self, request: TurnRequest) -> Any:
        """verl's output of one turn; the one boundary where the end of a server becomes an error of the episode."""
        call = server_call(self._backend, request)
        try:
            return await self._server_manager.generate(
                request_id=self._request_id,
                prompt_ids=list(request.prompt_ids),
                sampling_params=call.parameters,
                **call.arguments,
            )
        except RayActorError as error:
            raise EngineLost(f"the rollout server is gone: {error}") from error


def _finish_reason(output: Any, sampling: Sampling) -> FinishReason:
    if output.stop_reason in ("aborted", "abort"):
        return FinishReason.ABORT
    # Servers name the end of a full response differently; the tokens are the same.
    if output.token_ids and output.token_ids[-1] in sampling.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH
