"""The hint of an error about a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def nearest_hint(name: object, known: Collection[str], otherwise: str, *, cutoff: float = 0.6) -> str:
    """``did you mean 'NAME'?`` where a known name is near, else what is known.

    Args:
        name: What was asked for.
        known: Names that there are.
        otherwise: Said before them where none is near: ``known are``. Without names it is followed by ``none``.
        cutoff: How near, from 0 to 1, see ``difflib.get_close_matches``.

    >>> nearest_hint("gms8k", ["gsm8k", "math"], "known are"), nearest_hint("x", ["gsm8k", "math"], "known are")
    ("did you mean 'gsm8k'?", 'known are: gsm8k, math')
    """
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise}: {', '.join(known) or 'none'}"
