from __future__ import annotations

import difflib
from collections.abc import Collection


def nearest_hint(name: object, known: Collection[str], otherwise: str, *, cutoff: float = 0.6) -> str:
    """Suggest the most similar known name, or list the known names.

    Args:
        otherwise: Text before the list, for example ``known are``; an empty list is written as ``none``.
        cutoff: Similarity that counts as near, from 0 to 1, see ``difflib.get_close_matches``.

    >>> nearest_hint("gms8k", ["gsm8k", "math"], "known are"), nearest_hint("x", ["gsm8k", "math"], "known are")
    ("did you mean 'gsm8k'?", 'known are: gsm8k, math')
    """
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise}: {', '.join(known) or 'none'}"
