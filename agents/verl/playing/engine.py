"""verl's rollout servers as a turntree engine, so that training plays episodes by the same loop as everything else.

One object serves one episode: verl routes all turns with one request id to the
same server, which has the dialogue's keys and values.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.agents.verl.playing.backends import server_call
from turntree.agents.verl.serving.verl_types import draft_of


class VerlEngine:
    """An ``Engine`` over ``server_manager.generate``.

    Args:
        server_manager: verl's client of the rollout servers.
        backend: ``rollout.name``.
    """

    def __init__(self, server_manager: Any, *, backend: str) -> None:
        self._server_manager = server_manager
        self._backend = backend
        self._request_id = uuid4().hex

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn; the request's ``draft`` is not sent.

        Raises:
            RuntimeError: If the server returned no log-probabilities.
        """
        sampling = request.sampling
        call = server_call(self._backend, request)
        output = await self._server_manager.generate(
            request_id=self._request_id,
            prompt_ids=list(request.prompt_ids),
            sampling_params=call.parameters,
            **call.arguments,
        )
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


def _finish_reason(output: Any, sampling: Sampling) -> FinishReason:
    if output.stop_reason in ("aborted", "abort"):
        return FinishReason.ABORT
    # Servers name the end of a full response differently; the tokens are the same.
    if output.token_ids and output.token_ids[-1] in sampling.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH
