"""A stand-in for the sampling part of vLLM's model runner."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from turntree.agents.engines.request_wire import request_entries

PROMPT = 7  #: tokens


def request(seed: int | None, *, temperature: float = 1.0, said: int = 0, given: int = 0, **parameters: Any) -> Any:
    unset = {"min_p": 0.0, "min_tokens": 0, "logit_bias": None}
    entries = request_entries(seed=seed, given=given)
    return SimpleNamespace(
        sampling_params=SimpleNamespace(temperature=temperature, extra_args=entries, **{**unset, **parameters}),
        output_token_ids=[0] * said,
    )


def metadata(**given: Any) -> Any:
    unset = dict.fromkeys(
        ("top_k", "top_p", "allowed_token_ids_mask", "logprob_token_ids", "thinking_budget_state_holder")
    )
    logits = SimpleNamespace(all=[])
    numbers = {"no_penalties": True, "bad_words_token_ids": {}, "max_num_logprobs": None, "logitsprocs": logits}
    return SimpleNamespace(**{**unset, **numbers, **given})


class SamplingRunner(SimpleNamespace):
    def __init__(self, *requests: Any, inner: Any = None, device: Any = "cpu", **sampling: Any) -> None:
        names = [str(n) for n in range(len(requests))]
        super().__init__(
            device=torch.device(device),
            use_async_scheduling=False,
            sampler=SimpleNamespace(topk_topp_sampler=inner, logprobs_mode="processed_logprobs"),
            rejection_sampler=torch.nn.Module(),
            requests=dict(zip(names, requests, strict=True)),
            input_batch=SimpleNamespace(req_ids=names, num_prompt_tokens=np.full(512, PROMPT)),
            _sample=lambda logits, drafted: "vLLM's",
            _dummy_sampler_run=lambda hidden: SimpleNamespace(),
        )
        self.sampling = sampling
        self.changed()

    def changed(self) -> None:
        # As vLLM does when a request joins, leaves or moves.
        self.input_batch.sampling_metadata = metadata(**self.sampling)

    def prepare(self, drafts: Sequence[Sequence[int]] | None = None) -> Any:
        # As vLLM before a pass: positions, first row of each request, and the drafts' metadata or ``None``.
        lengths = [len(draft) for draft in drafts] if drafts is not None else [0] * len(self.input_batch.req_ids)
        said = [len(self.requests[name].output_token_ids) for name in self.input_batch.req_ids]
        positions = [
            np.arange(PROMPT + count - 1, PROMPT + count + length) for count, length in zip(said, lengths, strict=True)
        ]
        ends = np.cumsum([length + 1 for length in lengths], dtype=np.int32)
        begins = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32))
        self.query_start_loc = SimpleNamespace(gpu=begins.to(self.device))
        self.positions = torch.from_numpy(np.concatenate(positions)).to(self.device)
        if drafts is None:
            return None
        flat = torch.tensor([token for draft in drafts for token in draft], dtype=torch.int32)
        return SimpleNamespace(
            draft_token_ids=flat.to(self.device),
            num_draft_tokens=lengths,
            cu_num_sampled_tokens=torch.from_numpy(ends).to(self.device),
            logits_indices=torch.arange(int(ends[-1]), dtype=torch.int32).to(self.device),
            max_spec_len=max(lengths),
        )
