"""``TurntreeWorker`` for SGLang 0.5.23, whose scheduler may run ahead of the sampled tokens.

A pass hands its tokens to the next one on the device (``spec_info``), and the
requests get them while that one runs. So the store is told a pass's tokens when
the next one begins, from the tokens that it was handed (``seen_request``). A turn
that has ended by then may take part in one more pass; the tokens of that are
dropped.

On the CPU each pass may have another width; its result is padded to the
widest, since batches of different widths are merged. On an accelerator all have
the widest, for which SGLang has laid out its attention and captured its graphs.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func
from sglang.srt.layers.logprob_processor import compute_spec_logprobs
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_schedule, get_spec
from sglang.srt.speculative import ngram_worker
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.ngram_info import NgramVerifyInput
from sglang.srt.speculative.spec_utils import (
    commit_mamba_states_after_verify,
    move_accept_tokens_to_target_kvcache,
    prepare_mamba_track_for_verify,
    record_stream_for_v2_verify,
)

from turntree.agents.engines.sglang.drawing.compat import DRAFTED_NODES
from turntree.agents.engines.sglang.drawing.noise_rows import draw_for_all
from turntree.agents.engines.sglang.wire import ACCEPTED, DRAFTED
from turntree.agents.engines.sglang.worker.rows import TreeRows
from turntree.agents.engines.sglang.worker.seen_request import SeenRequest
from turntree.agents.engines.sglang.worker.tree_tensors import NumbersOnDevice, full_mask, tree_tensors
from turntree.agents.engines.sglang.worker.worker import NoCorpus, TurntreeWorker, make_drafter


class TurntreeWorker0523(TurntreeWorker):
    """A draft worker that drafts from a ``SpecForest``, with or without overlap."""

    def __init__(self, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
        """Replace ``NGRAMWorker``; its own corpus and buffers are not created."""
        BaseSpecWorker.__init__(self)
        draw_for_all()
        self.server_args = server_args
        self.enable_overlap = not get_schedule().disable_overlap_schedule
        self._target_worker = target_worker
        self.model_runner = target_worker.model_runner
        self.device = self.model_runner.device
        self.page_size = get_schedule().page_size
        self.draft_token_num = self.speculative_num_draft_tokens = get_spec().speculative_num_draft_tokens
        self.topk = get_spec().speculative_eagle_topk
        self.speculative_num_steps = get_spec().speculative_num_steps
        self.adaptive_controller = None
        self.ngram_corpus = NoCorpus()
        self.drafter = make_drafter(
            server_args,
            self.model_runner.model_config,
            self.draft_token_num,
            one_width=torch.device(self.device).type != "cpu",
        )
        self._seen: dict[str, SeenRequest] = {}
        self._drafted: list[int] = []
        self._began: float | None = None

    def alloc_memory_pool(self, **_: Any) -> None:
        """Do nothing: the target's pools exist by now."""
        self.req_to_token_pool, self.token_to_kv_pool_allocator = self.target_worker.get_memory_pool()

    def forward_batch_generation(self, batch: Any, on_publish: Any = None, pp_proxy_tensors: Any = None) -> Any:
        """Run a pass: a plain one for prompts, a verification where tokens are sampled."""
        stream = torch.get_device_module(self.device).current_stream()
        record_stream_for_v2_verify(batch, None, stream)
        if not batch.forward_mode.is_decode():
            return self._plain_pass(batch, on_publish, pp_proxy_tensors)
        self._prepare(batch, self.drafter.propose(self._known(batch)))
        return self._verifying_pass(batch, on_publish, pp_proxy_tensors)

    def _known(self, batch: Any) -> list[SeenRequest]:
        """The requests with the tokens of the last pass; none on a rank without a store, which asks for nothing."""
        if self.drafter.forest is None:
            return []
        here = {request.rid for request in batch.reqs}
        again = here & self._seen.keys()
        for rid in self._seen.keys() - here:
            self._seen[rid].rest()
            if self._seen[rid].finished_reason is not None:  # another was retracted, and comes back
                del self._seen[rid]
        lengths = batch.seq_lens_cpu.tolist()
        for request, tokens, length in zip(batch.reqs, self._handed(batch), lengths, strict=True):
            seen = self._seen.get(request.rid)
            if seen is None or seen.request is not request:
                seen = self._seen[request.rid] = SeenRequest(request)
            seen.hear(tokens, length)
        # Between two passes with requests in common nothing else ran, unless prompts did (``_plain_pass``).
        seconds = time.perf_counter() - self._began if self._began is not None and again else float("nan")
        self.drafter.settle_if_any(seconds)
        return [self._seen[request.rid] for request in batch.reqs]

    def _handed(self, batch: Any) -> list[list[int]]:
        """Tokens of each request from the last pass, whether the request has them or not."""
        if not self.enable_overlap or batch.grammar_needs_sync():
            return [[] for _ in batch.reqs]
        handed = batch.spec_info
        tokens = handed.accept_tokens.view(len(batch.reqs), -1)
        lengths = handed.accept_lens.to(tokens.dtype)[:, None]
        return [
            row[1 : 1 + row[0]] for row in torch.cat((lengths, tokens), 1).tolist()
        ]  # the device is waited for once

    def _prepare(self, batch: Any, rows: TreeRows) -> None:
        self._drafted = self.drafter.drafted()
        self._began = time.perf_counter()
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        verify_input = self._verify_input(rows, batch.seq_lens, batch.seq_lens_cpu.numpy())
        batch.input_ids = verify_input.draft_token
        batch.out_cache_loc = assign_extend_cache_locs_func(
            req_pool_indices=batch.req_pool_indices,
            req_to_token=batch.req_to_token_pool.req_to_token,
            start_offset=batch.seq_lens,
            end_offset=batch.seq_lens + rows.width,
            batch_size=len(batch.reqs),
            draft_token_num=rows.width,
            device=self.device,
        )
        prepare_mamba_track_for_verify(batch)
        batch.spec_info = verify_input

    def _verifying_pass(self, batch: Any, on_publish: Any, pp_proxy_tensors: Any) -> Any:
        result = self.target_worker.forward_batch_generation(batch, pp_proxy_tensors=pp_proxy_tensors, is_verify=True)
        logits_output, verify_input = result.logits_output, batch.spec_info
        if batch.has_grammar:
            raise RuntimeError("turntree's draft worker does not verify grammars; start the engine without them")
        predict, lengths, accepted = ngram_worker.eagle_sample(verify_input, batch, logits_output, None)
        new_lengths = batch.seq_lens + lengths
        width = verify_input.draft_token_num
        commit_mamba_states_after_verify(self.target_worker, batch, lengths, accepted, width)
        padded = torch.nn.functional.pad(accepted, (0, self.draft_token_num - width), value=-1)
        tokens = predict[padded.long()].flatten()
        move_accept_tokens_to_target_kvcache(batch, accepted, lengths - 1, self.token_to_kv_pool_allocator)
        if batch.return_logprob:
            compute_spec_logprobs(batch, logits_output, predict, accept_index=padded)
        if on_publish is not None:
            on_publish(new_lengths)
        logits_output.customized_info = {DRAFTED: self._drafted, ACCEPTED: NumbersOnDevice(lengths - 1)}
        batch.forward_mode = ForwardMode.DECODE
        return self._result(result, tokens, tokens, lengths, new_lengths)

    def _plain_pass(self, batch: Any, on_publish: Any, pp_proxy_tensors: Any) -> Any:
        self._began = None
        self.drafter.prompts(batch.reqs)
        result = self.target_worker.forward_batch_generation(batch, pp_proxy_tensors=pp_proxy_tensors)
        rows = len(batch.reqs)
        new_lengths = batch.seq_lens.clone()
        tokens = torch.zeros(rows, self.draft_token_num, dtype=torch.int32, device=self.device)
        tokens[:, 0] = result.next_token_ids
        if on_publish is not None:
            on_publish(new_lengths)
        lengths = torch.ones(rows, dtype=torch.int32, device=self.device)
        return self._result(result, result.next_token_ids, tokens.flatten(), lengths, new_lengths)

    def _result(
        self, result: Any, said: torch.Tensor, handed: torch.Tensor, lengths: torch.Tensor, new_lengths: torch.Tensor
    ) -> Any:
        """The scheduler's result; ``handed`` goes to the next pass, (rows, widest) flattened."""
        return GenerationBatchResult(
            logits_output=result.logits_output,
            next_token_ids=said,
            can_run_cuda_graph=result.can_run_cuda_graph,
            accept_lens=lengths,
            new_seq_lens=new_lengths,
            next_draft_input=NgramVerifyInput(
                draft_token_num=self.draft_token_num,
                new_seq_lens=new_lengths,
                accept_tokens=handed,
                accept_lens=lengths,
            ),
            speculative_num_draft_tokens=self.draft_token_num,
        )

    def _verify_input(self, rows: TreeRows, lengths: torch.Tensor, lengths_cpu: np.ndarray) -> Any:
        tokens, positions, places, child, sibling = tree_tensors(rows, lengths, self.device)
        made = NgramVerifyInput(
            draft_token=tokens,
            custom_mask=full_mask(rows, lengths_cpu, self.device),
            positions=positions,
            retrieve_index=places,
            retrieve_next_token=child,
            retrieve_next_sibling=sibling,
            draft_token_num=rows.width,
        )
        setattr(made, DRAFTED_NODES, self._drafted)
        return made

    def clear_cache_pool(self) -> None:
        """Exchange turns; the key-value cache is emptied, the store is kept."""
        self._seen.clear()
        self.drafter.settle_if_any(float("nan"))
        self.drafter.idle()
