"""The noise of each request of a batch, carried through SGLang.

The source of the noise is known where a batch is built from requests; from
there it is an extra attribute of SGLang's ``SamplingBatchInfo``, through
all operations on a batch. The functions here wrap the methods of the same
names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from turntree.agents.engines.sglang.drawing.draws import Noise

_NOISES = "turntree_noises"
_everyone = False


def draw_for_all() -> None:
    """Draw all further requests of this process by ``draws``: its worker is turntree's."""
    global _everyone
    _everyone = True


def noises_of(sampling: Any) -> list[Noise] | None:
    """Noise of each row of a ``SamplingBatchInfo``; ``None`` where no row is turntree's."""
    noises: list[Noise] | None = getattr(sampling, _NOISES, None)
    if noises is None or not (_everyone or any(noise.ours for noise in noises)):
        return None
    if len(noises) != len(sampling):
        raise RuntimeError(
            f"a batch of {len(sampling)} requests has the noise of {len(noises)}; this version of SGLang treats "
            "batches in a way that turntree's hooks do not know"
        )
    return noises


def from_schedule_batch(original: Callable[..., Any], cls: type, batch: Any, *rest: Any, **options: Any) -> Any:
    """Attach the noise to a batch built from requests."""
    info = original(cls, batch, *rest, **options)
    setattr(info, _NOISES, [Noise.of(request) for request in batch.reqs])
    return info


def filter_batch(original: Callable[..., None], info: Any, keep: Sequence[int], *rest: Any, **options: Any) -> None:
    """Keep the noise of the remaining rows."""
    noises = getattr(info, _NOISES, None)
    original(info, keep, *rest, **options)
    if noises is not None:
        setattr(info, _NOISES, [noises[row] for row in keep])


def merge_batch(original: Callable[..., None], info: Any, other: Any) -> None:
    """Append the noise of another batch."""
    noises = [*getattr(info, _NOISES, ()), *getattr(other, _NOISES, ())]
    original(info, other)
    setattr(info, _NOISES, noises)


def copy_for_forward(original: Callable[..., Any], info: Any, *rest: Any, **options: Any) -> Any:
    """Copy the noise: the scheduler goes on while a copy is drawn from."""
    copied = original(info, *rest, **options)
    if hasattr(info, _NOISES):
        setattr(copied, _NOISES, list(getattr(info, _NOISES)))
    return copied
