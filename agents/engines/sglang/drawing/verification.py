from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from turntree.agents.engines.sglang.drawing.draws import Noises, draw_at_nodes
from turntree.agents.engines.sglang.drawing.noise_rows import noises_of

#: Attribute of SGLang's ``NgramVerifyInput``: nodes of each row's tree after its root, without padding.
DRAFTED_NODES = "turntree_drafted"


def _at_nodes(logits: Tensor, sampling: Any, noises: Noises, verify_input: Any) -> Tensor:
    drafted = getattr(verify_input, DRAFTED_NODES, None)
    width = verify_input.draft_token_num
    return alike_on_ranks(draw_at_nodes(logits, sampling, noises, verify_input.positions, width, drafted))


def alike_on_ranks(drawn: Tensor) -> Tensor:
    # The ranks' logits may differ in rounding, so the first rank decides for all.
    group = importlib.import_module("sglang.srt.distributed").get_tp_group()
    if group.world_size > 1:
        group.broadcast(drawn, src=0)
    return drawn


def sampling_verify(
    original: Callable[..., None], verify_input: Any, batch: Any, logits_output: Any, sampling: Any
) -> None:
    """Verify like ``NgramVerifyInput._greedy_verify``, with drawn tokens instead of the most probable ones."""
    noises = noises_of(sampling)
    if noises is None:
        return original(verify_input, batch, logits_output, sampling)
    logits = logits_output.next_token_logits
    rows, width = batch.batch_size(), verify_input.draft_token_num
    verify_input.predict = torch.empty(len(logits) + 1, dtype=torch.int32, device=logits.device)
    verify_input.accept_indices = torch.full((rows, width), -1, dtype=torch.int32, device=logits.device)
    verify_input.num_correct_drafts = torch.empty((rows,), dtype=torch.int32, device=logits.device)
    # "retrive" is SGLang's spelling. The kernel walks each tree along `target_predict`.
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
