"""The noise of a batch's requests, carried through SGLang as an attribute of ``SamplingBatchInfo``.

The noise is known where SGLang builds a batch from requests. These functions wrap the ``SamplingBatchInfo`` methods of
the same names, so that the attribute survives every operation on a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from turntree.agents.engines.sglang.drawing.draws import Noises

_NOISES = "turntree_noises"
_NOTHING = Noises.of([])
_everyone = False


def draw_for_all() -> None:
    """Make turntree sample all further requests of this process: its draft worker is turntree's."""
    global _everyone
    _everyone = True


def noises_of(sampling: Any) -> Noises | None:
    """Return the noise of a ``SamplingBatchInfo``; ``None`` if SGLang samples the whole batch."""
    noises: Noises | None = getattr(sampling, _NOISES, None)
    if noises is None or not (_everyone or noises.ours.any()):
        return None
    if len(noises.seeds) != len(sampling):
        raise RuntimeError(
            f"a batch of {len(sampling)} requests has the noise of {len(noises.seeds)}; this version of SGLang changes "
            "batches by a method that turntree does not wrap. Use SGLang 0.5.12"
        )
    return noises


def from_schedule_batch(original: Callable[..., Any], cls: type, batch: Any, *rest: Any, **options: Any) -> Any:
    info = original(cls, batch, *rest, **options)
    setattr(info, _NOISES, Noises.of(batch.reqs))
    return info


def filter_batch(original: Callable[..., None], info: Any, keep: Sequence[int], *rest: Any, **options: Any) -> None:
    original(info, keep, *rest, **options)
    if hasattr(info, _NOISES):
        setattr(info, _NOISES, getattr(info, _NOISES).at(np.asarray(keep, np.int64)))


def merge_batch(original: Callable[..., None], info: Any, other: Any) -> None:
    original(info, other)
    setattr(info, _NOISES, getattr(info, _NOISES, _NOTHING).then(getattr(other, _NOISES, _NOTHING)))


def copy_for_forward(original: Callable[..., Any], info: Any, *rest: Any, **options: Any) -> Any:
    # The scheduler changes its own object while the copy is sampled from.
    copied = original(info, *rest, **options)
    if hasattr(info, _NOISES):
        setattr(copied, _NOISES, getattr(info, _NOISES))
    return copied
