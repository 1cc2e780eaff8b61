"""SGLang's n-gram draft worker (0.5.12) with turntree's draft store instead of its n-gram corpus.

``NGRAMWorker`` runs the passes; this subclass chooses the draft-tree nodes that each pass verifies. There are three
differences. Drafts come from the draft store, by dialogue state. Each pass may have a different width, the number of
tokens per request (1 is plain decoding). The draft store outlives the key-value cache.

SGLang calls ``clear_cache_pool`` at every flush, weight update and release of memory, when no request runs. Here this
method keeps the draft store, and ends turns that were aborted and had no pass afterwards.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.ngram_worker import NGRAMWorker
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from turntree.agents.engines.drafting.tokenizer_hash import tokenizer_hash
from turntree.agents.engines.sglang.drawing.draws import DRAFTED_NODES, draw_for_all
from turntree.agents.engines.sglang.settings import settings_from_environment
from turntree.agents.engines.sglang.wire import ACCEPTED, DRAFTED
from turntree.agents.engines.sglang.worker.drafter import StepCounts, TreeDrafter
from turntree.agents.engines.sglang.worker.ranked import FollowingDrafter, LeadingDrafter
from turntree.agents.engines.sglang.worker.refusals import check_server
from turntree.agents.engines.sglang.worker.rows import TreeRows, full_mask, tree_tensors
from turntree.agents.engines.sglang.worker.width_backends import BackendsByWidth
from turntree.spec_tree import SpecForest
from turntree.spec_tree.store.warm_up import warm_up

logger = logging.getLogger(__name__)


class TurntreeWorker(NGRAMWorker):  # type: ignore[misc]
    """A draft worker that drafts from a ``SpecForest``."""

    def __init__(self, server_args: Any, *, target_worker: Any, tp_rank: int, **_: Any) -> None:
        """Replace ``NGRAMWorker.__init__``, without creating its corpus and buffers.

        Raises:
            RefusedSettings: If the server's arguments do not allow draft trees.
        """
        check_server(server_args)
        # SGLang's own verification of trees ignores seeds, so turntree also samples the requests of other clients.
        draw_for_all()
        self.target_worker = target_worker
        self.model_runner = target_worker.model_runner
        self.device = self.model_runner.device
        self.tp_rank = tp_rank
        self.page_size = server_args.page_size
        self.draft_token_num = server_args.speculative_num_draft_tokens
        self.ngram_corpus = NoCorpus()
        self.drafter = make_drafter(
            server_args, self.model_runner.model_config, self.draft_token_num, device=torch.device(self.device).type
        )
        self._backends = BackendsByWidth(self.model_runner, self.drafter.widths)
        self._outcome: StepCounts | None = None

    def forward_batch_generation(self, batch: Any) -> Any:
        """Run a pass; add its drafted and accepted tokens to the result."""
        self._outcome = None
        if batch.forward_mode.is_extend():
            self.drafter.prompts(batch.reqs)
        result = super().forward_batch_generation(batch)
        if self._outcome is not None:
            result.logits_output.customized_info = {DRAFTED: self._outcome.drafted, ACCEPTED: self._outcome.accepted}
        return result

    def _prepare_for_speculative_decoding(self, batch: Any) -> None:
        # `NGRAMWorker` calls this before every pass; passes over prompts have no drafts.
        if batch.forward_mode.is_extend() or batch.forward_mode.is_idle():
            return
        rows = self.drafter.propose(batch.reqs)
        self._backends.use(rows.width)
        batch.spec_algorithm = SpeculativeAlgorithm.NGRAM
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.spec_info = self._verify_input(rows, batch.seq_lens, batch.seq_lens_cpu.numpy())
        batch.spec_info.prepare_for_verify(batch, self.page_size)

    def _verify_input(self, rows: TreeRows, lengths: torch.Tensor, lengths_cpu: np.ndarray) -> Any:
        tokens, positions, indices, child, sibling = tree_tensors(rows, lengths, self.device)
        verify_input = NgramVerifyInput(
            draft_token=tokens,
            tree_mask=full_mask(rows, lengths_cpu, self.device, batch=self._backends.most_rows),
            positions=positions,
            retrieve_index=indices,
            retrieve_next_token=child,
            retrieve_next_sibling=sibling,
            draft_token_num=rows.width,
        )
        setattr(verify_input, DRAFTED_NODES, self.drafter.drafted())
        return verify_input

    def _update_ngram_corpus(self, batch: Any) -> None:
        # Called after verification, when the requests have their new tokens.
        self._outcome = self.drafter.settle()

    def clear_cache_pool(self) -> None:
        self.drafter.idle()

    def update_weights_from_disk(self, recv_req: Any) -> tuple[bool, str]:
        return True, "the draft worker has no weights"

    def update_weights_from_ipc(self, recv_req: Any) -> tuple[bool, str]:
        return True, "the draft worker has no weights"

    def figures(self) -> dict[str, float | int]:
        """Return the counters of drafting and of the draft store; empty on a rank without a draft store."""
        forest = self.drafter.forest
        if forest is None:
            return {}
        held = {f"forest_{name}": value for name, value in asdict(forest.stats()).items()}
        return asdict(self.drafter.counts) | held | forest.imported_counters()


class NoCorpus:
    """Stands in for SGLang's n-gram corpus, which ``NGRAMWorker`` calls when requests end."""

    def erase_match_state(self, request_ids: list[str]) -> None:
        """Do nothing: there is no corpus."""


def make_drafter(
    server_args: Any, model_config: Any, widest: int, *, device: str = "cpu"
) -> TreeDrafter | FollowingDrafter:
    """Create the drafter of one rank of an engine; the first rank's drafter has an empty draft store."""
    settings = settings_from_environment()
    widths = settings.widths_within(widest, device=server_args.device)
    settings = replace(settings, widths=widths)
    ranks = get_tp_group() if server_args.tp_size > 1 else None
    if ranks is not None and ranks.rank_in_group:
        return FollowingDrafter(ranks, widths)
    warm_up()
    ends = settings.forest.end_tokens | frozenset(model_config.hf_eos_token_id or ())
    tokenizer = tokenizer_hash(server_args.tokenizer_path, revision=server_args.revision)
    config = replace(settings.forest, end_tokens=ends).of_policy(model_config.vocab_size, tokenizer)
    forest = SpecForest(config)
    if ranks is None:
        return TreeDrafter(settings, forest, widest, device=device)
    return LeadingDrafter(ranks, settings, forest, widest, device=device)
