"""vLLM's arguments for turntree's drafter on an accelerator: whole graphs, drafts beside asynchronous scheduling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turntree.agents.engines.vllm import compat
from turntree.agents.engines.vllm.graphs import graph_sizes
from turntree.agents.engines.vllm.settings import SECTION, DrafterSettings, drafts_by_turntree

SCHEDULER = "turntree.agents.engines.vllm.overlap.scheduler.DraftScheduler"
"""The class that vLLM loads."""
_BATCHED = 8192
"""Most tokens of a step where the caller does not say: the places of all drafts, and prompts beside them."""


def on_accelerator(arguments: Mapping[str, Any], *, rows: int, ranks: int) -> dict[str, Any]:
    """vLLM's arguments as they are best on an accelerator; what they say already is kept.

    Args:
        arguments: With turntree's drafter in ``speculative_config``, or another one or none, for which they stay.
        rows: Most requests of a step.
        ranks: Processes that share the model. Several draft synchronously: each would need the same drafts in time.
    """
    speculative = arguments.get("speculative_config")
    if speculative is None or not drafts_by_turntree(speculative):
        return dict(arguments)
    given = dict(arguments)
    longest = int(speculative["num_speculative_tokens"])
    given.setdefault("compilation_config", graph_sizes(rows, longest))
    given.setdefault("max_num_batched_tokens", _BATCHED)
    if (
        ranks == 1
        and compat.is_checked()  # others have another contract of ngram_gpu, and draft synchronously
        and given.get("async_scheduling") is not False
        and "scheduler_cls" not in given
    ):
        settings = DrafterSettings.from_additional_config(given.get("additional_config"))
        given["additional_config"] = {**(given.get("additional_config") or {}), **settings.to_additional_config()}
        given["scheduler_cls"] = SCHEDULER
        given["speculative_config"] = {
            "method": "ngram_gpu",
            "num_speculative_tokens": longest,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 1,
        }
    return given


def is_ours(vllm_config: Any) -> bool:
    """Whether vLLM's configuration names ``ngram_gpu`` for turntree's drafter: it then has a section of turntree's."""
    speculative, additional = vllm_config.speculative_config, vllm_config.additional_config
    return (
        speculative is not None
        and speculative.method == "ngram_gpu"
        and isinstance(additional, Mapping)
        and SECTION in additional
    )
