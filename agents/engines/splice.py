"""Joining of two parts of a turn into one completion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

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


_UNSAID: dict[str, Callable[[Completion], Any]] = {
    "accepted": lambda part: (False,) * len(part.token_ids),
    "levels": lambda part: "A" * len(part.token_ids),
    "versions": lambda part: (part.weights_version,) * len(part.token_ids),
    "forced": lambda part: (False,) * len(part.token_ids),
}
"""Fields that a part leaves out, and what it means by that."""


def join(head: Completion, tail: Completion) -> Completion:
    """The completion of ``head`` followed by ``tail``. A field that one of them leaves out is filled up for it, but for
    the behaviour: where it is not recorded of both, it is not of the turn.

    Args:
        tail: The rest, sampled after the prompt and ``head``; its finish reason is the turn's. It counts the head's
            tokens as prompt, so the number of cached prompt tokens is taken from ``head``.
    """
    whole = {
        name: (getattr(head, name) or filled(head)) + (getattr(tail, name) or filled(tail))
        for name, filled in _UNSAID.items()
        if getattr(head, name) or getattr(tail, name)
    }
    parts = [part.behaviour_logprobs for part in (head, tail) if part.token_ids]
    return replace(
        tail,
        token_ids=head.token_ids + tail.token_ids,
        behaviour_logprobs=sum(parts, ()) if all(parts) else (),
        logprobs=head.logprobs + tail.logprobs,
        draft=add_stats(head.draft, tail.draft),
        cached_tokens=head.cached_tokens,
        top=_rows(head.top, tail.top),
        **whole,
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
