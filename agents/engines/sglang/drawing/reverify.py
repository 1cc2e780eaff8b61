"""Draws at the positions of a draft that is given with the prompt (``agents.engines.reverified``).

The pass over a prompt computes the logits at all positions whose log-probabilities
are asked for. At those of a draft the turn's own noise draws a token from them, as
decoding would after the same tokens. The draws come back in the place of the two most
probable tokens there: the drawn token twice, with its log-probability before and
after all cuts. Two most probable tokens differ, so a caller sees whether it was
answered by these hooks.

Invariant: requests without the mark get what they asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turntree.agents.engines.sglang.drawing.draws import Noises, draw, reshaped
from turntree.agents.engines.sglang.drawing.noise_rows import noises_of
from turntree.agents.engines.sglang.drawing.verification import alike_on_ranks

_JUDGING = "turntree_reverify"
_ROWS = 128
"""Most distributions held at once beside SGLang's own."""


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
    """Around ``LogitsProcessor.forward``: draw in a pass over prompts that has a draft to be verified again."""
    reverify = Judging.of(logits_metadata)
    if reverify is None:
        return original(processor, input_ids, states, lm_head, logits_metadata, *rest, **options)
    # SGLang makes the same of the batch; only batches that sample nothing need more of it.
    metadata = _metadata_class().from_forward_batch(logits_metadata)
    setattr(metadata, _JUDGING, reverify)
    output = original(processor, input_ids, states, lm_head, metadata, *rest, **options)
    reverify.write(output)
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
    """Around ``LogitsProcessor._get_logits``, which computes a pass's logits at once or in chunks."""
    logits = original(processor, states, lm_head, logits_metadata, *rest, **options)
    reverify: Judging | None = getattr(logits_metadata, _JUDGING, None)
    if reverify is not None:
        reverify.draw(logits)
    return logits


class Judging:
    """The draws of one pass over prompts."""

    def __init__(self, batch: Any, noises: Noises) -> None:
        """Lay out the rows of logits that SGLang will compute.

        Args:
            batch: SGLang's ``ForwardBatch``.
        """
        self._sampling, self._noises = batch.sampling_info, noises
        spans = (batch.extend_prefix_lens_cpu, batch.extend_logprob_start_lens_cpu, batch.extend_seq_lens_cpu)
        lengths = [(int(prefix), int(start), int(count)) for prefix, start, count in zip(*spans, strict=True)]
        self._recorded = [count - start for _, start, count in lengths]
        # Where nothing is recorded of a request, its last row is computed all the same.
        places = [range(prefix + min(start, count - 1), prefix + count) for prefix, start, count in lengths]
        self._request = np.repeat(np.arange(len(places)), [len(span) for span in places])
        self._place = np.concatenate([np.array(span, np.int64) for span in places])
        self._wanted = (noises.reverified & ~noises.fresh)[self._request]
        self._tokens = np.zeros(len(self._request), np.int64)
        self._logprobs = np.zeros((len(self._request), 2))
        self._seen = 0

    @classmethod
    def of(cls, batch: Any) -> Judging | None:
        """The draws of SGLang's ``ForwardBatch``; ``None`` where there are none."""
        noises = noises_of(getattr(batch, "sampling_info", None))
        if noises is None or not noises.reverified.any():
            return None
        mode = batch.forward_mode
        records = mode.is_extend() and not mode.is_target_verify() and batch.return_logprob
        return cls(batch, noises) if records and batch.extend_logprob_start_lens_cpu is not None else None

    def draw(self, logits: Tensor) -> None:
        """Draw at the next rows.

        Args:
            logits: Shape (rows, vocabulary).
        """
        begin, self._seen = self._seen, self._seen + len(logits)
        rows = begin + np.flatnonzero(self._wanted[begin : self._seen])
        for part in (rows[i : i + _ROWS] for i in range(0, len(rows), _ROWS)):
            self._draw(part, logits[torch.from_numpy(part - begin).to(logits.device)].float())

    def write(self, output: Any) -> None:
        """Put the draws of each verified again request where SGLang has its most probable tokens.

        Args:
            output: SGLang's ``LogitsProcessorOutput``.
        """
        if output.input_top_logprobs_val is None or self._seen != len(self._request):
            return  # the caller sees that nothing was drawn
        for request in np.unique(self._request[self._wanted]).tolist():
            rows = np.flatnonzero(self._request == request)[: self._recorded[request]]
            twice = np.repeat(self._tokens[rows, None], 2, 1)
            output.input_top_logprobs_val[request] = self._logprobs[rows].tolist()
            output.input_top_logprobs_idx[request] = twice.tolist()

    def _draw(self, rows: np.ndarray, logits: Tensor) -> None:
        owner = torch.from_numpy(self._request[rows]).to(logits.device)
        before = (logits / self._sampling.temperatures.view(-1)[owner, None]).softmax(-1)
        after = reshaped(before, self._sampling, owner)
        drawn = alike_on_ranks(draw(after, self._noises.at(self._request[rows]), self._place[rows]))
        both = torch.stack([p.gather(-1, drawn[:, None].to(p.device))[:, 0] for p in (before, after)], -1)
        self._tokens[rows] = drawn.cpu().numpy()
        self._logprobs[rows] = both.log().cpu().numpy()


def _metadata_class() -> Any:
    from sglang.srt.layers.logits_processor import LogitsMetadata

    return LogitsMetadata
