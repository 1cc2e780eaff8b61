from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turntree.agents.engines.vllm import compat
from turntree.agents.engines.vllm.graphs import graph_sizes
from turntree.agents.engines.vllm.settings import SECTION, DrafterSettings, drafts_by_turntree

SCHEDULER = "turntree.agents.engines.vllm.overlap.scheduler.DraftScheduler"
_BATCHED = 8192  #: Default of the most tokens of a step: the draft positions of all requests, and prompts beside them.


def on_accelerator(arguments: Mapping[str, Any], *, rows: int, ranks: int) -> dict[str, Any]:
    """Return vLLM's arguments completed for turntree's drafter on an accelerator; given ones win.

    Args:
        arguments: Returned unchanged unless ``speculative_config`` names turntree's drafter.
        rows: Most requests of a step.
        ranks: Processes that share the model. Several ranks draft synchronously.
    """
    speculative = arguments.get("speculative_config")
    if speculative is None or not drafts_by_turntree(speculative):
        return dict(arguments)
    given = dict(arguments)
    longest = int(speculative["num_speculative_tokens"])
    given.setdefault("compilation_config", graph_sizes(rows, longest))
    given.setdefault("max_num_batched_tokens", _BATCHED)
    if (
        ranks == 1  # with several, each rank would need the same drafts at the same time
        and compat.is_checked()  # the interface of ngram_gpu differs in other versions
        and given.get("async_scheduling") is not False
        and "scheduler_cls" not in given
    ):
        settings = DrafterSettings.from_additional_config(given.get("additional_config"))
        given["additional_config"] = {**(given.get("additional_config") or {}), **settings.to_additional_config()}
        given["scheduler_cls"] = SCHEDULER
        # vLLM refuses custom drafters under asynchronous scheduling; `ngram_interface` replaces this one.
        given["speculative_config"] = {
            "method": "ngram_gpu",
            "num_speculative_tokens": longest,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 1,
        }
    return given


def is_ours(vllm_config: Any) -> bool:
    # turntree replaces ngram_gpu only if additional_config has turntree's section.
    speculative, additional = vllm_config.speculative_config, vllm_config.additional_config
    return (
        speculative is not None
        and speculative.method == "ngram_gpu"
        and isinstance(additional, Mapping)
        and SECTION in additional
    )
