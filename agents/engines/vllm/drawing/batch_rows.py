"""Seeds, positions and temperatures of the requests of vLLM's batch, in arrays that change only when the batch does.

vLLM makes new sampling metadata whenever a request joins, leaves or changes its place, and only then
(``InputBatch.refresh_metadata``); so one comparison tells whether the arrays still hold.

Positions come from the device, where vLLM has those of all tokens of the pass. They are right also where it
schedules asynchronously and counts draft tokens on the host before they are verified; the length of a
request's output is then too large.
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

GREEDY = 1e-5
"""Temperature below which vLLM takes the most probable token."""
_BUILT_IN = "vllm.v1.sample.logits_processor.builtin"
"""Module of the logits processors of which a request's parameters tell whether it has them."""


class _Drawn(NamedTuple):
    """What a request's parameters say of its draws."""

    parameters: Any
    seed: int | None
    """``None`` for greedy requests as well."""
    given: int
    temperature: float
    untouched: bool
    """Whether it is seeded or greedy, and its logits are changed by its temperature alone."""


@dataclass(frozen=True, eq=False)
class BatchRows:
    """The requests of a batch."""

    seeded: NDArray[np.int64]
    """Index in the batch of each request that has a seed, shape (seeded,)."""
    seeds: NDArray[np.uint64]
    """Seed, shape (seeded,)."""
    held: Tensor
    """On the device, int64: bits of the seed; tokens given at the turn's begin less those of the prompt; bits of the
    temperature in float64. Shape (3, requests)."""
    fused: bool
    """Whether the logits of all of them are changed by temperature alone, and no other log-probabilities are asked for
    than those of the sampled tokens."""

    @cached_property
    def index(self) -> Tensor:
        """``seeded`` on the device."""
        return torch.from_numpy(self.seeded).to(self.held.device, non_blocking=True)

    def ends(self, runner: Any) -> Tensor:
        """Position in its turn of the token that each seeded request samples at the end of this pass, int64, shape
        (seeded,)."""
        last = runner.query_start_loc.gpu[1 : self.held.shape[1] + 1] - 1
        ends: Tensor = (runner.positions[last] + 1 + self.held[1])[self.index]
        return ends


class CurrentRows:
    """``BatchRows`` of a model runner's batch."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._drawn: dict[str, _Drawn] = {}
        self._metadata: Any = None
        self._rows: BatchRows

    def now(self) -> BatchRows:
        """The rows of this step."""
        metadata = self._runner.input_batch.sampling_metadata
        if metadata is not self._metadata:
            self._rows, self._metadata = self._read(metadata), metadata
        return self._rows

    def _read(self, metadata: Any) -> BatchRows:
        batch, requests = self._runner.input_batch, self._runner.requests
        before, self._drawn = self._drawn, {}
        for name in batch.req_ids:
            parameters = requests[name].sampling_params
            known = before.get(name)
            # An id may come back with another request.
            self._drawn[name] = known if known and known.parameters is parameters else _drawn(parameters)
        drawn = list(self._drawn.values())
        seeds = np.array([one.seed or 0 for one in drawn], np.uint64)
        base = np.array([one.given for one in drawn], np.int64) - batch.num_prompt_tokens[: len(drawn)]
        # As vLLM has it, in single precision.
        temperature = np.array([one.temperature for one in drawn], np.float32).astype(np.float64)
        held = torch.from_numpy(np.stack([seeds.view(np.int64), base, temperature.view(np.int64)]))
        seeded = np.array([row for row, one in enumerate(drawn) if one.seed is not None], np.int64)
        fused = all(one.untouched for one in drawn) and _untouched(metadata, self._runner.sampler)
        held = held.to(self._runner.device, non_blocking=True)
        return BatchRows(seeded=seeded, seeds=seeds[seeded], held=held, fused=fused)


def _drawn(parameters: Any) -> _Drawn:
    if parameters is None:  # of a pooling model, which samples nothing
        return _Drawn(parameters, None, 0, 0.0, False)
    entries: Mapping[str, Any] | None = parameters.extra_args
    greedy = parameters.temperature < GREEDY
    seed = None if greedy else noise_seed(entries)
    changed = parameters.min_p or parameters.min_tokens or parameters.logit_bias
    untouched = (greedy or seed is not None) and not changed
    return _Drawn(parameters, seed, given_of(entries), parameters.temperature, untouched)


def _untouched(metadata: Any, sampler: Any) -> bool:
    """Whether temperature alone changes the logits of a batch, as far as its sampling metadata tell."""
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
