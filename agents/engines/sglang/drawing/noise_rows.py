"""The noise of each request of a batch, carried through SGLang.

The source of the noise is known where a batch is built from requests; from
there it is an extra attribute of SGLang's ``SamplingBatchInfo``, through
all operations on a batch. The functions here wrap the methods of the same
names.
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
    """Draw all further requests of this process by ``draws``: its worker is turntree's."""
    global _everyone
    _everyone = True


def noises_of(sampling: Any) -> Noises | None:
    """Noise of the rows of a ``SamplingBatchInfo``; ``None`` where no row is turntree's."""
    noises: Noises | None = getattr(sampling, _NOISES, None)
    if noises is None or not (_everyone or noises.ours.any()):
        return None
    if len(noises.seeds) != len(sampling):
        raise RuntimeError(
            f"a batch of {len(sampling)} requests has the noise of {len(noises.seeds)}; this version of SGLang treats "
            "batches in a way that turntree's hooks do not know"
        )
    return noises


def from_schedule_batch(original: Callable[..., Any], cls: type, batch: Any, *rest: Any, **options: Any) -> Any:
    """Attach the noise to a batch built from requests."""
    info = original(cls, batch, *rest, **options)
    setattr(info, _NOISES, Noises.of(batch.reqs))
    return info


def filter_batch(original: Callable[..., None], info: Any, keep: Sequence[int], *rest: Any, **options: Any) -> None:
    """Keep the noise of the remaining rows."""
    original(info, keep, *rest, **options)
    if hasattr(info, _NOISES):
        setattr(info, _NOISES, getattr(info, _NOISES).at(np.asarray(keep, np.int64)))


def merge_batch(original: Callable[..., None], info: Any, other: Any) -> None:
    """Append the noise of another batch."""
    original(info, other)
    setattr(info, _NOISES, getattr(info, _NOISES, _NOTHING).then(getattr(other, _NOISES, _NOTHING)))


def copy_for_forward(original: Callable[..., Any], info: Any, *rest: Any, **options: Any) -> Any:
    """Have the noise in the copy too: the scheduler goes on while that is drawn from."""
    copied = original(info, *rest, **options)
    if hasattr(info, _NOISES):
        setattr(copied, _NOISES, getattr(info, _NOISES))
    return copied
