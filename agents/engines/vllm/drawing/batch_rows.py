"""Seeds, positions and temperatures of the requests of vLLM's batch, as arrays.

The arrays are rebuilt only when the batch changes. vLLM replaces its sampling metadata object exactly when a request
joins, leaves or moves (``InputBatch.refresh_metadata``), so the arrays are current as long as that object is the same.

Positions are read from the device. Under asynchronous scheduling, the output length on the host would be too large:
it counts draft tokens before they are verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turntree.agents.engines.request_wire import given_of, noise_seed

GREEDY = 1e-5  #: Temperature below which vLLM takes the most probable token.
#: Module of vLLM's built-in logits processors, whose use shows in a request's parameters.
_BUILT_IN = "vllm.v1.sample.logits_processor.builtin"


class _RowSampling(NamedTuple):
    parameters: Any
    seed: int | None  #: seed of the noise; ``None`` for requests without a seed, and for greedy requests
    given: int  #: how many of the turn's first tokens end the prompt
    temperature: float
    only_temperature: bool  #: whether the request is seeded or greedy, and only temperature changes its logits


@dataclass(frozen=True, eq=False)
class BatchRows:
    seeded: NDArray[np.int64]  #: batch index of each request that has a seed, shape (seeded,)
    seeds: NDArray[np.uint64]  #: shape (seeded,)
    #: On the device, int64, shape (3, requests). Row 0: bits of the seed. Row 1: number of the turn's first tokens that
    #: end the prompt, minus prompt tokens. Row 2: bits of the temperature in float64.
    held: Tensor
    #: Whether temperature alone changes the logits, and at most log-probabilities of sampled tokens are requested. Then
    #: turntree's kernels can sample the step (``fused_sampling``).
    fused: bool

    @cached_property
    def index(self) -> Tensor:  # `seeded` on the device
        return torch.from_numpy(self.seeded).to(self.held.device, non_blocking=True)

    def ends(self, runner: Any) -> Tensor:
        """Return the turn position of the token that each seeded request samples in this pass.

        int64, shape (seeded,).
        """
        # `positions` counts from the start of the prompt; `held[1]` shifts it to the start of the turn.
        last = runner.query_start_loc.gpu[1 : self.held.shape[1] + 1] - 1
        ends: Tensor = (runner.positions[last] + 1 + self.held[1])[self.index]
        return ends


class CurrentRows:
    """The ``BatchRows`` of a model runner's current batch."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._by_request: dict[str, _RowSampling] = {}
        self._metadata: Any = None
        self._rows: BatchRows

    def now(self) -> BatchRows:
        metadata = self._runner.input_batch.sampling_metadata
        if metadata is not self._metadata:
            self._rows, self._metadata = self._read(metadata), metadata
        return self._rows

    def _read(self, metadata: Any) -> BatchRows:
        batch, requests = self._runner.input_batch, self._runner.requests
        before, self._by_request = self._by_request, {}
        for name in batch.req_ids:
            parameters = requests[name].sampling_params
            known = before.get(name)
            # Compare the parameters too: a caller may reuse an id for another request.
            self._by_request[name] = known if known and known.parameters is parameters else _row_sampling(parameters)
        rows = list(self._by_request.values())
        seeds = np.array([row.seed or 0 for row in rows], np.uint64)
        base = np.array([row.given for row in rows], np.int64) - batch.num_prompt_tokens[: len(rows)]
        # vLLM divides by the temperature in single precision.
        temperature = np.array([row.temperature for row in rows], np.float32).astype(np.float64)
        held = torch.from_numpy(np.stack([seeds.view(np.int64), base, temperature.view(np.int64)]))
        seeded = np.array([index for index, row in enumerate(rows) if row.seed is not None], np.int64)
        fused = all(row.only_temperature for row in rows) and _only_temperature(metadata, self._runner.sampler)
        held = held.to(self._runner.device, non_blocking=True)
        return BatchRows(seeded=seeded, seeds=seeds[seeded], held=held, fused=fused)


def _row_sampling(parameters: Any) -> _RowSampling:
    if parameters is None:  # a pooling model samples nothing
        return _RowSampling(parameters, None, 0, 0.0, False)
    entries: Mapping[str, Any] | None = parameters.extra_args
    greedy = parameters.temperature < GREEDY
    seed = None if greedy else noise_seed(entries)
    changed = parameters.min_p or parameters.min_tokens or parameters.logit_bias
    only_temperature = (greedy or seed is not None) and not changed
    return _RowSampling(parameters, seed, given_of(entries), parameters.temperature, only_temperature)


def _only_temperature(metadata: Any, sampler: Any) -> bool:
    thinking = metadata.thinking_budget_state_holder
    return (
        metadata.top_k is None
        and metadata.top_p is None
        and metadata.no_penalties
        and not metadata.bad_words_token_ids
        and metadata.allowed_token_ids_mask is None
        and not metadata.logprob_token_ids
        and (thinking is None or not thinking.has_tracked_requests())
        and all(type(processor).__module__ == _BUILT_IN for processor in metadata.logitsprocs.all)
        and (
            metadata.max_num_logprobs is None
            or (metadata.max_num_logprobs == 0 and sampler.logprobs_mode == "processed_logprobs")
        )
    )
