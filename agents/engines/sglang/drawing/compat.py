"""Differences between SGLang 0.5.12 and 0.5.23.

0.5.12 verifies in ``NgramVerifyInput`` and samples plain tensors; 0.5.23 verifies
in ``eagle_sample``, on the CPU greedily even where tokens are sampled, and samples
pairs. Its updates of the weights lie between a call that begins and one that ends
them. It also reserves places in the cache for more tokens of a request than a pass
can have, in a table whose rows it does not widen for them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from turntree.agents.engines.sglang.drawing.draws import Noise, draw_at_nodes
from turntree.agents.engines.sglang.drawing.noise_rows import noises_of

DRAFTED_NODES = "turntree_drafted"
"""Attribute of SGLang's ``NgramVerifyInput``: nodes of each row's tree after its root, without padding."""


@lru_cache(maxsize=1)
def is_v2() -> bool:
    """Whether SGLang has only second-generation speculative workers, as in 0.5.23: they can overlap with
    the scheduler, and verify in ``eagle_sample``."""
    return importlib.util.find_spec("sglang.srt.speculative.eagle_worker") is None


def worker_class() -> type:
    """The class of the draft worker."""
    name, module = ("TurntreeWorker0523", "worker_0_5_23") if is_v2() else ("TurntreeWorker", "worker")
    worker: type = getattr(importlib.import_module(f"turntree.agents.engines.sglang.worker.{module}"), name)
    return worker


def version_hooks() -> dict[str, Callable[..., Any]]:
    """Targets of SGLang's hook registry, and the wrappers of each."""
    if is_v2():
        return {
            "sglang.srt.speculative.ngram_worker.eagle_sample": _eagle_sample,
            "sglang.srt.mem_cache.kv_cache_configurator.get_req_to_token_extra_context_len": extra_places,
        }
    return {"sglang.srt.speculative.ngram_info.NgramVerifyInput._sampling_verify": _sampling_verify}


def sampled(tokens: Tensor) -> Any:
    """``tokens`` in the form that ``Sampler._sample_from_probs`` returns."""
    return (tokens, None) if is_v2() else tokens


def _at_nodes(logits: Tensor, sampling: Any, noises: list[Noise], verify_input: Any) -> Tensor:
    """A token at each node, shape (rows, width), the same on all tensor-parallel ranks: their sums may differ."""
    drafted = getattr(verify_input, DRAFTED_NODES, None)
    width = verify_input.draft_token_num
    return alike_on_ranks(draw_at_nodes(logits, sampling, noises, verify_input.positions, width, drafted))


def alike_on_ranks(drawn: Tensor) -> Tensor:
    """The first tensor-parallel rank's tokens, on every rank."""
    group = importlib.import_module("sglang.srt.distributed").get_tp_group()
    if group.world_size > 1:
        group.broadcast(drawn, src=0)
    return drawn


def _sampling_verify(
    original: Callable[..., None], verify_input: Any, batch: Any, logits_output: Any, sampling: Any
) -> None:
    """0.5.12: as ``NgramVerifyInput._greedy_verify``, with sampled tokens instead of the most probable ones."""
    noises = noises_of(sampling)
    if noises is None:
        return original(verify_input, batch, logits_output, sampling)
    logits = logits_output.next_token_logits
    rows, width = batch.batch_size(), verify_input.draft_token_num
    verify_input.predict = torch.empty(len(logits) + 1, dtype=torch.int32, device=logits.device)
    verify_input.accept_indices = torch.full((rows, width), -1, dtype=torch.int32, device=logits.device)
    verify_input.num_correct_drafts = torch.empty((rows,), dtype=torch.int32, device=logits.device)
    importlib.import_module("sglang.srt.speculative.ngram_info").verify_tree_greedy(
        predicts=verify_input.predict,
        accept_index=verify_input.accept_indices,
        accept_token_num=verify_input.num_correct_drafts,
        candidates=verify_input.draft_token.reshape(rows, width),
        retrive_index=verify_input.retrieve_index,
        retrive_next_token=verify_input.retrieve_next_token,
        retrive_next_sibling=verify_input.retrieve_next_sibling,
        target_predict=_at_nodes(logits, sampling, noises, verify_input),
    )
    return None


def _eagle_sample(
    original: Callable[..., Any],
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    **options: Any,
) -> Any:
    """0.5.23: the same, with the logits that ``eagle_sample`` prepares before it draws."""
    sampling = batch.sampling_info
    noises = None if batch.forward_mode.is_idle() or sampling.is_all_greedy else noises_of(sampling)
    if noises is None:
        return original(verify_input, batch, logits_output, grammar_mask, **options)
    logits = logits_output.next_token_logits
    rows, width = len(batch.seq_lens), verify_input.draft_token_num
    for added in (sampling.acc_additive_penalties, sampling.logit_bias):
        if added is not None:
            logits.add_(torch.repeat_interleave(added, width, dim=0))
    if grammar_mask is not None:
        grammar_mask.apply(logits)
    verify = importlib.import_module("sglang.srt.speculative.eagle_utils").verify_tree_greedy_func
    predict, accepted, count = verify(
        predicts=torch.zeros(len(logits), dtype=torch.int32, device=logits.device),
        accept_index=torch.full((rows, verify_input.max_tree_depth), -1, dtype=torch.int32, device=logits.device),
        accept_token_num=torch.empty((rows,), dtype=torch.int32, device=logits.device),
        candidates=verify_input.draft_token.reshape(rows, width),
        retrieve_index=verify_input.retrieve_index,
        retrieve_next_token=verify_input.retrieve_next_token,
        retrieve_next_sibling=verify_input.retrieve_next_sibling,
        target_predict=_at_nodes(logits, sampling, noises, verify_input),
        topk=verify_input.tree_topk,
    )
    return predict, count + 1, accepted


def extra_places(original: Callable[[], int]) -> int:
    """0.5.23: places of a request's row beyond the context, enough for SGLang's reservation before each pass.

    It reserves twice the depth of a tree times its breadth, and widens the row for that only if pages have several
    tokens. A turn near the end of its context would write its reservation beyond its row.
    """
    sizing = importlib.import_module("sglang.srt.mem_cache.allocation_sizing")
    return max(original(), int(sizing.get_alloc_reserve_per_decode()))
