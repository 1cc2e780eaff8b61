"""Entries sent with a request into vLLM's processes, in ``SamplingParams.extra_args``.

They are those of ``request_wire``. Over HTTP they are ``vllm_xargs``, which takes no
mappings, so a state goes as JSON text; both forms are read.

Invariant: nothing here imports vLLM, so that both ends can use it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turntree.agents.engines import request_wire
from turntree.agents.engines.state_wire import KEY
from turntree.spec_tree import DialogueState


def flat(entries: Mapping[str, Any]) -> dict[str, Any]:
    """``entries`` without mappings, for ``vllm_xargs``."""
    return {name: json.dumps(value) if isinstance(value, Mapping) else value for name, value in entries.items()}


def state_of(entries: Mapping[str, Any] | None) -> DialogueState | None:
    """The state of a request in either form, ``None`` if it has none.

    Raises:
        ValueError: If the entry is not a state.
    """
    value = (entries or {}).get(KEY)
    return request_wire.state_of({KEY: json.loads(value)} if isinstance(value, str) else entries)
