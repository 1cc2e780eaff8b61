"""Entries that a request carries into SGLang's processes, and that SGLang's answers carry back.

A request's entries are in ``sampling_params["custom_params"]``: the mark ``OURS``, and the entries of ``request_wire``.
Client and server both import this module, so it does not import SGLang.
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
