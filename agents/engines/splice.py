from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from turntree.agents.engines.protocol import Completion, DraftStats, TopLogprobs


def add_stats(first: DraftStats, second: DraftStats) -> DraftStats:
    """Return the sum of both counters.

    >>> add_stats(DraftStats(drafted=2), DraftStats(drafted=3, accepted=1)).drafted
    5
    """
    return DraftStats(
        **{field.name: getattr(first, field.name) + getattr(second, field.name) for field in fields(DraftStats)}
    )


#: per optional field, the values that an empty field stands for
_DEFAULTS: dict[str, Callable[[Completion], Any]] = {
    "accepted": lambda part: (False,) * len(part.token_ids),
    "levels": lambda part: "A" * len(part.token_ids),
    "versions": lambda part: (part.weights_version,) * len(part.token_ids),
    "forced": lambda part: (False,) * len(part.token_ids),
}


def join(head: Completion, tail: Completion) -> Completion:
    """Return the completion of ``head`` followed by ``tail``, which was sampled after the prompt and ``head``.

    If only one of them has an optional field, the other gets default values; ``behaviour_logprobs`` needs both. For
    ``tail`` the head is prompt, so ``cached_tokens`` comes from ``head``. The finish reason is that of ``tail``.
    """
    whole = {
        name: (getattr(head, name) or filled(head)) + (getattr(tail, name) or filled(tail))
        for name, filled in _DEFAULTS.items()
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
    if top is None or width == 0:
        return None
    return TopLogprobs(ids=top.ids[:, :width], logprobs=top.logprobs[:, :width])
