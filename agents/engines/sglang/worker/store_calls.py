"""Calls of the draft store in SGLang's schedulers: insert turns, save or restore the store.

SGLang can change server settings at run time, and all ranks apply a change between the same two passes. A call is
encoded as the name of a setting: ``_CALL`` followed by JSON. Only the first rank has the draft store.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from turntree.agents.engines.served.remote_store import carry_out
from turntree.spec_tree.errors import ForestError

logger = logging.getLogger(__name__)

_CALL = "turntree_store "


async def call_store(manager: Any, method: str, *args: Any) -> None:
    """Call ``insert``, ``save`` or ``restore`` of the draft store in all schedulers.

    Must run on the event loop of ``manager``, SGLang's ``TokenizerManager``.

    Raises:
        OSError: If the call failed in a scheduler.
    """
    from sglang.srt.managers.io_struct import SetInternalStateReq

    name = _CALL + json.dumps([method, *args])
    if not all(await manager.set_internal_state(SetInternalStateReq(server_args={name: 0}))):
        raise OSError(f"the draft store inside SGLang could not {method}; see the log of SGLang's scheduler")


def answer_call(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """Wrap ``Scheduler.set_internal_state``: carry out calls of the draft store, pass on other changes."""
    call = read_call(request.server_args)
    if call is None:
        return original(scheduler, request)
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    method, *args = call
    worker = scheduler.draft_worker
    if method != "insert" and scheduler.is_fully_idle():
        worker.clear_cache_pool()  # commits the last turns to the store
    try:
        if worker.drafter.forest is not None:
            carry_out(worker.drafter.forest, method, args, first_rank=True)
        done = True
    except (OSError, ValueError, ForestError):
        logger.exception("the draft store could not %s", method)
        done = False
    return SetInternalStateReqOutput(updated=done, server_args={})


def read_call(settings: Mapping[str, Any]) -> list[Any] | None:
    name = next(iter(settings), "")
    if not name.startswith(_CALL):
        return None
    call: list[Any] = json.loads(name.removeprefix(_CALL))
    return call
