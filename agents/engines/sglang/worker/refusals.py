"""Refusals of settings and requests that would otherwise run and silently give wrong results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RefusedSettings(ValueError):
    """Server arguments that the draft worker cannot serve."""


class RefusedSampling(ValueError):
    """Sampling parameters with which a draft tree cannot be verified."""


#: Parameters whose effect depends on earlier tokens, and the values without effect.
_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_new_tokens": 0}
_TREE_BACKENDS = ("flashinfer", "fa3", "triton", "torch_native")  #: attention backends that take a tree mask


def check_server(server_args: Any) -> None:
    """Check the arguments of a server.

    Raises:
        RefusedSettings: If the worker would give wrong results with them, or not run.
    """
    width = server_args.speculative_num_draft_tokens
    if width is None or width < 1:
        raise RefusedSettings(f"speculative_num_draft_tokens must be at least 1, got {width}")
    for name in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        value = getattr(server_args, name)
        if value != 1.0:
            raise RefusedSettings(
                f"{name} must be 1.0, got {value}: below it, tokens are accepted more often than sampled"
            )
    if server_args.enable_dp_attention:
        raise RefusedSettings("data-parallel attention does not work with draft trees; drop enable_dp_attention")
    if server_args.pp_size != 1:
        raise RefusedSettings(f"draft trees need pp_size 1, got {server_args.pp_size}")
    if server_args.page_size not in (None, 1):
        raise RefusedSettings(f"draft trees need page_size 1 in the cache, got {server_args.page_size}")
    backend = server_args.attention_backend
    if backend is not None and backend not in _TREE_BACKENDS:
        raise RefusedSettings(f"attention_backend must take a tree mask ({', '.join(_TREE_BACKENDS)}), got {backend!r}")


def check_sampling(parameters: Mapping[str, Any]) -> None:
    """Check a request's sampling parameters.

    Raises:
        RefusedSampling: If the nodes of one tree would need different distributions.
    """
    for name, neutral in _PENALTIES.items():
        value = parameters.get(name)
        if value is not None and value != neutral:
            raise RefusedSampling(
                f"{name} must be {neutral}, got {value}: it depends on earlier tokens, but SGLang applies the same "
                "value to all nodes of a draft tree; start the engine without speculation to use it"
            )
