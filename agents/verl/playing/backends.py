"""The parameters of a turn's request, which verl passes on unchanged and rollout backends name differently.

The dialogue state, the key of the drafts, is sent with the parameters. verl's
servers take no further arguments, but each engine has a field for private data;
turntree's own server takes the state itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from turntree.agents.engines.protocol import TurnRequest
from turntree.agents.engines.request_wire import request_entries
from turntree.agents.verl.names import ROLLOUT_NAME

_SHARED = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


class ServerCall(NamedTuple):
    """Arguments of a call of ``server_manager.generate``."""

    parameters: dict[str, Any]
    """``sampling_params``."""
    arguments: dict[str, Any]
    """Further keyword arguments."""


def server_call(backend: str, request: TurnRequest) -> ServerCall:
    """The call for a turn; its draft is not sent.

    Args:
        backend: ``rollout.name``; an unknown one gets no state.
    """
    sampling = request.sampling
    parameters: dict[str, Any] = {name: getattr(sampling, name) for name in _SHARED}
    parameters |= {"stop_token_ids": list(sampling.stop_token_ids), "logprobs": True}
    return _REQUESTS.get(backend, _plain)(parameters, request)


def _plain(parameters: dict[str, Any], request: TurnRequest) -> ServerCall:
    if request.sampling.seed is not None:
        parameters["seed"] = request.sampling.seed
    return ServerCall(parameters, {})


def _turntree(parameters: dict[str, Any], request: TurnRequest) -> ServerCall:
    arguments = {"state": request.state, "reuse": request.reuse, "sample": request.sample}
    return ServerCall(_plain(parameters, request).parameters, arguments)


def _vllm(parameters: dict[str, Any], request: TurnRequest) -> ServerCall:
    # A turn ends at turntree's stop tokens; vLLM adds the model's own end tokens otherwise.
    parameters["ignore_eos"] = True
    parameters["extra_args"] = request_entries(**_entries(request))
    return ServerCall(parameters, {})


def _sglang(parameters: dict[str, Any], request: TurnRequest) -> ServerCall:
    from turntree.agents.engines.sglang.wire import custom_params

    # Marked as turntree's, a turn ends at turntree's stop tokens.
    parameters["custom_params"] = custom_params(**_entries(request))
    return ServerCall(parameters, {})


def _entries(request: TurnRequest) -> dict[str, Any]:
    """What ``request_entries`` takes of a request."""
    named = {"state": request.state, "seed": request.sampling.seed}
    return named | {"reuse": request.reuse, "sample": request.sample}


_REQUESTS: dict[str, Callable[[dict[str, Any], TurnRequest], ServerCall]] = {
    ROLLOUT_NAME: _turntree,
    "vllm": _vllm,
    "sglang": _sglang,
}
