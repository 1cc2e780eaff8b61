"""Joining of two parts of a turn into one completion."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from turntree.agents.engines.protocol import Completion, DraftStats, TopLogprobs


def add_stats(first: DraftStats, second: DraftStats) -> DraftStats:
    """The sums of both counters.

    >>> add_stats(DraftStats(drafted=2), DraftStats(drafted=3, accepted=1)).drafted
    5
    """
    return DraftStats(
        **{field.name: getattr(first, field.name) + getattr(second, field.name) for field in fields(DraftStats)}
    )


def join(head: Completion, tail: Completion) -> Completion:
    """The completion of ``head`` followed by ``tail``.

    Args:
        head: The first tokens, with levels, behaviour log-probabilities and most probable tokens.
        tail: The rest, sampled after the prompt and ``head``; its finish reason is the turn's. It counts the head's
            tokens as prompt, so the number of cached prompt tokens is taken from ``head``.
    """
    count = len(tail.token_ids)
    return replace(
        tail,
        token_ids=head.token_ids + tail.token_ids,
        logprobs=head.logprobs + tail.logprobs,
        draft=add_stats(head.draft, tail.draft),
        accepted=head.accepted + (tail.accepted or (False,) * count),
        cached_tokens=head.cached_tokens,
        levels=head.levels + (tail.levels or "A" * count),
        behaviour_logprobs=head.behaviour_logprobs + tail.behaviour_logprobs,
        top=_rows(head.top, tail.top),
    )


def _rows(head: TopLogprobs | None, tail: TopLogprobs | None) -> TopLogprobs | None:
    if head is None or tail is None:
        return None
    width = min(head.ids.shape[1], tail.ids.shape[1])
    return TopLogprobs(
        ids=np.concatenate([head.ids[:, :width], tail.ids[:, :width]]),
        logprobs=np.concatenate([head.logprobs[:, :width], tail.logprobs[:, :width]]),
    )


def narrowed(top: TopLogprobs | None, width: int) -> TopLogprobs | None:
    """The first ``width`` columns; ``None`` for none."""
    if top is None or width == 0:
        return None
    return TopLogprobs(ids=top.ids[:, :width], logprobs=top.logprobs[:, :width])
