"""Entries sent with a request into SGLang's processes (``sampling_params["custom_params"]``), and returned.

The entries are a mark and the entries of ``request_wire``. Nothing here imports SGLang: client and server both use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: In ``meta_info`` of the answer: draft nodes of each verify step without padding, shape (steps,).
DRAFTED = "turntree_drafted"
#: In ``meta_info`` of the answer: accepted draft nodes of each verify step, shape (steps,).
ACCEPTED = "turntree_accepted"
OURS = "turntree"  #: Key of the mark: turntree samples the request, and the turn ends only at its own stop tokens.
#: Key in a scheduler's internal state: whether it re-verifies drafts in the pass over a prompt.
REVERIFIES = "turntree_reverifies"


def is_ours(entries: Mapping[str, Any] | None) -> bool:
    return bool(entries and entries.get(OURS))
