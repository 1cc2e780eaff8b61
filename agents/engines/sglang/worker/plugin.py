"""turntree's SGLang plugin (0.5.12), which SGLang loads in each of its processes by entry point.

There are two ways to select the draft worker. ``speculative_algorithm="TURNTREE"`` is SGLang's own way for plugins.
Some launchers create server arguments before plugins are loaded, or accept only built-in names (verl). With these, use
the name ``NGRAM`` and the setting ``replace_ngram``: turntree then replaces the worker of ``NGRAM``. Tests:
``test_worker_parts.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from turntree.agents.engines.sglang.settings import ALGORITHM, graph_sizes, settings_from_environment
from turntree.agents.engines.sglang.wire import REVERIFIES
from turntree.agents.engines.sglang.worker.refusals import check_sampling, check_server
from turntree.agents.engines.sglang.worker.store_calls import answer_call

logger = logging.getLogger(__name__)

DRAFT_TOKENS = 8  #: default of ``speculative_num_draft_tokens``
RUNNING_REQUESTS = 48  #: default of ``max_running_requests``; SGLang's own default for speculation


def register() -> None:
    """Register the algorithm and the hooks; safe to call twice."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import get_spec

    from turntree.agents.engines.sglang.drawing import hooks
    from turntree.agents.engines.sglang.worker.algorithm import TurntreeAlgorithm

    if get_spec(ALGORITHM) is not None:
        return
    hooks.install()
    SpeculativeAlgorithm.register(
        ALGORITHM, supports_overlap=False, validate_server_args=arrange, spec_class=TurntreeAlgorithm
    )(_worker)
    HookRegistry.register(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_one_request",
        _validate_request,
        HookType.BEFORE,
    )
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.get_internal_state", _with_figures, HookType.AROUND)
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.set_internal_state", answer_call, HookType.AROUND)
    if settings_from_environment().replace_ngram:
        HookRegistry.register(
            "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker", create_worker, HookType.AROUND
        )


def arrange(server_args: Any) -> None:
    """Complete a server's arguments as SGLang does for ``NGRAM``, and check the result.

    Raises:
        RefusedSettings: If the arguments do not work with draft trees.
    """
    if server_args.max_running_requests is None:
        server_args.max_running_requests = RUNNING_REQUESTS
    if server_args.speculative_num_draft_tokens is None:
        server_args.speculative_num_draft_tokens = DRAFT_TOKENS
    if server_args.speculative_num_steps is None:
        server_args.speculative_num_steps = server_args.speculative_num_draft_tokens - 1
    server_args.speculative_eagle_topk = max(2, server_args.speculative_num_draft_tokens - 1)  # 1 would mean a chain
    # Drafts need the sampled tokens on the host before the next pass.
    server_args.disable_overlap_schedule = True
    server_args.enable_mixed_chunk = False
    thin_graphs(server_args)
    check_server(server_args)


def thin_graphs(server_args: Any) -> None:
    """Capture fewer batch sizes than SGLang does with drafts, unless the user gave the sizes."""
    sizes = server_args.cuda_graph_bs
    if server_args.device == "cpu" or sizes is None or server_args.disable_cuda_graph_padding:
        return
    # SGLang has filled in its defaults by now. Sizes that differ from the defaults come from the user: keep them.
    if sizes == server_args._generate_cuda_graph_batch_sizes():
        server_args.cuda_graph_bs = graph_sizes(server_args.cuda_graph_max_bs)


def is_ours(server_args: Any) -> bool:
    name = (server_args.speculative_algorithm or "").upper()
    return name == ALGORITHM or (name == "NGRAM" and settings_from_environment().replace_ngram)


def reverifies(server_args: Any) -> bool:
    # Not with SGLang's own drafters: SGLang verifies their drafts without the request's seed.
    return is_ours(server_args) or not server_args.speculative_algorithm


def _worker(server_args: Any) -> type:
    from turntree.agents.engines.sglang.worker.worker import TurntreeWorker

    return TurntreeWorker


def create_worker(original: Callable[..., Any], algorithm: Any, server_args: Any) -> Any:
    return _worker(server_args) if algorithm.is_ngram() else original(algorithm, server_args)


def _validate_request(manager: Any, request: Any, *_: Any, **__: Any) -> None:
    # This runs in the tokenizer's process, where an exception reaches the caller.
    if is_ours(manager.server_args):
        check_sampling(request.sampling_params)


def _with_figures(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    answer = original(scheduler, request)
    answer.internal_state[REVERIFIES] = reverifies(scheduler.server_args)
    worker = getattr(scheduler, "draft_worker", None)
    if is_ours(scheduler.server_args) and worker is not None:
        answer.internal_state["turntree"] = worker.figures()
    return answer
