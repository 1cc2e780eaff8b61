"""verl's SGLang server with turntree's worker in it: ``rollout.name=sglang``.

verl starts and feeds SGLang as ever; this loads SGLang's plugins before verl makes
its arguments, and adds to each turn what the worker counted, under the names that
verl logs. Registered in the place of verl's own replica, which it is in all else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import ray
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.sglang_rollout.async_sglang_server import SGLangHttpServer, SGLangReplica

from turntree.agents.engines.sglang.answers import draft_stats
from turntree.agents.engines.sglang.wire import DRAFTED

_ANSWER: ContextVar[dict[str, Any] | None] = ContextVar("answer", default=None)
"""Where the turn that is being generated writes what SGLang said of it; verl keeps the tokens alone."""


class DraftingSglangServer(SGLangHttpServer):
    """What runs in the Ray actor; arguments are verl's."""

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        """As verl's."""
        from sglang.srt.plugins import load_plugins

        load_plugins()
        await super().launch_server(*args, **kwargs)
        manager = self.tokenizer_manager
        if manager is not None:  # only the first node of a replica answers requests
            manager.generate_request = noted(manager.generate_request)

    async def generate(self, *args: Any, **kwargs: Any) -> TokenOutput:
        """As verl's; the worker's counters come along where it drafts."""
        answer: dict[str, Any] = {}
        before = _ANSWER.set(answer)
        try:
            output = await super().generate(*args, **kwargs)
        finally:
            _ANSWER.reset(before)
        if DRAFTED in answer:
            draft = draft_stats(answer, len(output.token_ids))
            output.extra_fields |= {
                "spec_num_verify_steps": draft.verify_steps,
                "spec_num_draft_tokens": draft.drafted,
                "spec_num_accepted_tokens": draft.accepted,
            }
        return output


class DraftingSglangReplica(SGLangReplica):
    """Starts ``DraftingSglangServer``; arguments are verl's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(DraftingSglangServer)


def noted(generate: Callable[..., AsyncIterator[dict[str, Any]]]) -> Callable[..., AsyncIterator[dict[str, Any]]]:
    """The same, whose answers are also written where the caller's context wants them."""

    async def generate_request(*args: Any, **kwargs: Any) -> AsyncIterator[dict[str, Any]]:
        async for answer in generate(*args, **kwargs):
            wanted = _ANSWER.get()
            if wanted is not None:
                wanted.update(answer.get("meta_info") or {})
            yield answer

    return generate_request
