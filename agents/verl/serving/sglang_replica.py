"""verl's SGLang server with turntree's worker in it: ``rollout.name=sglang``.

verl starts and calls SGLang as usual; this loads SGLang's plugins before verl builds
its arguments, and adds the worker's counters to each turn, under the names that
verl logs. Registered instead of verl's own replica, and otherwise identical.
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
"""Context variable for SGLang's metadata of the turn being generated; verl keeps only the tokens."""


class DraftingSglangServer(SGLangHttpServer):
    """The class of the Ray actor; arguments are verl's."""

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        """As verl's."""
        from sglang.srt.plugins import load_plugins

        load_plugins()
        await super().launch_server(*args, **kwargs)
        manager = self.tokenizer_manager
        if manager is not None:  # only the first node of a replica answers requests
            manager.generate_request = noted(manager.generate_request)

    async def generate(self, *args: Any, **kwargs: Any) -> TokenOutput:
        """As verl's, with the worker's counters if it drafts."""
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
    """The same generator, with answers also written to the caller's context variable, if set."""

    async def generate_request(*args: Any, **kwargs: Any) -> AsyncIterator[dict[str, Any]]:
        async for answer in generate(*args, **kwargs):
            wanted = _ANSWER.get()
            if wanted is not None:
                wanted.update(answer.get("meta_info") or {})
            yield answer

    return generate_request
