"""Entries sent with a request into SGLang's processes, in ``sampling_params["custom_params"]``, and returned.

They are the entries of ``request_wire``, and a mark.

Invariant: nothing here imports SGLang, so that both ends can use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DRAFTED = "turntree_drafted"
"""Returned in ``meta_info``: draft nodes of each verify step, padding left out, shape (steps,)."""
ACCEPTED = "turntree_accepted"
"""Returned in ``meta_info``: draft nodes that the policy sampled in each verify step, shape (steps,)."""
OURS = "turntree"
"""Key of the mark of a request that is drawn by ``draws`` and ends only at its own stop tokens."""
JUDGES = "turntree_reverifies"
"""Key in a scheduler's internal state: whether it judges drafts in the pass over a prompt."""


def is_ours(entries: Mapping[str, Any] | None) -> bool:
    """Whether a request has the mark."""
    return bool(entries and entries.get(OURS))
