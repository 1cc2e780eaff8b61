"""Re-verification of a draft at the end of a prompt (``agents.engines.reverified``), inside SGLang.

To re-verify a draft means to draw the policy's own token at each position of the draft. A pass over a prompt computes
logits at all positions whose log-probabilities are requested. At the draft's positions, a token is drawn from these
logits with the turn's own noise, as decoding would draw it. The answer lists the drawn token twice, in place of the two
most probable tokens: once with its log-probability before all cuts (min-p, top-k, top-p), once with that after them.
SGLang's two most probable tokens always differ, so the caller can tell whether these hooks answered.

Requests without turntree's mark (``wire.OURS``) are not changed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turntree.agents.engines.sglang.drawing.draws import Noises, alike_on_ranks, draw, noises_of, reshaped

_PROCESSOR = "sglang.srt.layers.logits_processor"
_REVERIFICATION = "turntree_reverify"
_ROWS = 128  #: number of positions drawn at once, which bounds the memory for distributions


def forward(
    original: Callable[..., Any],
    processor: Any,
    input_ids: Any,
    states: Any,
    lm_head: Any,
    logits_metadata: Any,
    *rest: Any,
    **options: Any,
) -> Any:
    """Wrap ``LogitsProcessor.forward``: draw tokens in passes over prompts that end with a draft to re-verify."""
    reverification = Reverification.of(logits_metadata)
    if reverification is None:
        return original(processor, input_ids, states, lm_head, logits_metadata, *rest, **options)
    # Convert the batch as SGLang does if a batch samples. The result carries the draws to the hook `get_logits`.
    metadata = importlib.import_module(_PROCESSOR).LogitsMetadata.from_forward_batch(logits_metadata)
    setattr(metadata, _REVERIFICATION, reverification)
    output = original(processor, input_ids, states, lm_head, metadata, *rest, **options)
    reverification.write(output)
    return output


def get_logits(
    original: Callable[..., Tensor],
    processor: Any,
    states: Any,
    lm_head: Any,
    logits_metadata: Any,
    *rest: Any,
    **options: Any,
) -> Tensor:
    """Wrap ``LogitsProcessor._get_logits``, which computes a pass's logits at once or in chunks."""
    logits = original(processor, states, lm_head, logits_metadata, *rest, **options)
    reverification: Reverification | None = getattr(logits_metadata, _REVERIFICATION, None)
    if reverification is not None:
        reverification.draw(logits)
    return logits


class Reverification:
    """The tokens drawn in one pass over prompts. A row is one position at which SGLang computes logits."""

    def __init__(self, batch: Any, noises: Noises) -> None:
        # Compute which rows of logits SGLang will compute for `batch`, its ForwardBatch, in SGLang's order.
        self._sampling, self._noises = batch.sampling_info, noises
        spans = (batch.extend_prefix_lens_cpu, batch.extend_logprob_start_lens_cpu, batch.extend_seq_lens_cpu)
        lengths = [(int(prefix), int(start), int(count)) for prefix, start, count in zip(*spans, strict=True)]
        self._recorded = [count - start for _, start, count in lengths]  # rows whose log-probabilities are requested
        # SGLang computes a request's last row even if its log-probability is not requested.
        computed = [range(prefix + min(start, count - 1), prefix + count) for prefix, start, count in lengths]
        self._request = np.repeat(np.arange(len(computed)), [len(span) for span in computed])
        self._position = np.concatenate([np.array(span, np.int64) for span in computed])
        self._wanted = (noises.reverified & ~noises.fresh)[self._request]  # rows to draw at; fresh: without a seed
        self._tokens = np.zeros(len(self._request), np.int64)
        self._logprobs = np.zeros((len(self._request), 2))
        self._seen = 0  # rows of logits that `draw` has received

    @classmethod
    def of(cls, batch: Any) -> Reverification | None:
        """Return an instance for SGLang's ``ForwardBatch``; ``None`` if the batch re-verifies nothing."""
        noises = noises_of(getattr(batch, "sampling_info", None))
        if noises is None or not noises.reverified.any():
            return None
        mode = batch.forward_mode
        records = mode.is_extend() and not mode.is_target_verify() and batch.return_logprob
        return cls(batch, noises) if records and batch.extend_logprob_start_lens_cpu is not None else None

    def draw(self, logits: Tensor) -> None:
        """Draw at the next rows; ``logits`` has shape (rows, vocabulary)."""
        begin, self._seen = self._seen, self._seen + len(logits)
        rows = begin + np.flatnonzero(self._wanted[begin : self._seen])
        for part in (rows[i : i + _ROWS] for i in range(0, len(rows), _ROWS)):
            self._draw(part, logits[torch.from_numpy(part - begin).to(logits.device)].float())

    def write(self, output: Any) -> None:
        """Write the draws into SGLang's ``LogitsProcessorOutput``, as the most probable tokens."""
        if output.input_top_logprobs_val is None or self._seen != len(self._request):
            return  # the two most probable tokens then differ, which tells the caller that nothing was drawn
        for request in np.unique(self._request[self._wanted]).tolist():
            rows = np.flatnonzero(self._request == request)[: self._recorded[request]]
            twice = np.repeat(self._tokens[rows, None], 2, 1)
            output.input_top_logprobs_val[request] = self._logprobs[rows].tolist()
            output.input_top_logprobs_idx[request] = twice.tolist()

    def _draw(self, rows: np.ndarray, logits: Tensor) -> None:
        owner = torch.from_numpy(self._request[rows]).to(logits.device)
        before = (logits / self._sampling.temperatures.view(-1)[owner, None]).softmax(-1)
        after = reshaped(before, self._sampling, owner)
        drawn = alike_on_ranks(draw(after, self._noises.at(self._request[rows]), self._position[rows]))
        both = torch.stack([p.gather(-1, drawn[:, None].to(p.device))[:, 0] for p in (before, after)], -1)
        self._tokens[rows] = drawn.cpu().numpy()
        self._logprobs[rows] = both.log().cpu().numpy()
