"""CUDA graphs of the whole model for steps with drafts of any lengths.

With a drafter vLLM 0.24 has whole graphs for steps alone in which every request brings a draft of the greatest length,
and up to 512 tokens; all others, those without drafts among them, run in pieces. Its mode for any batch (``FULL``)
gives up the attention kernels that are meant for few queries a request. Here are two families instead: graphs of one
token a request, as vLLM has without a drafter, and graphs of up to 1 + ``longest`` tokens a request, by their number.
Steps that read prompts run in pieces, as without a drafter.

Changed on the model runner, of 0.24 and 0.28: ``uniform_decode_query_len``, ``_check_and_update_cudagraph_mode`` (adds
the second family), ``_determine_batch_execution_and_padding`` and ``_dummy_run`` (which family a step has),
``_build_attention_metadata`` (queries a request while graphs of the second family are captured), and its dispatcher's
``dispatch``. The second family needs attention whose kernels take requests of unequal lengths from a graph:
FlashAttention, and all that vLLM has for any batch in ``FULL`` (Triton's, and so float32), but not FlashInfer.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from itertools import product
from typing import Any

from turntree.agents.engines.drafting.step_bound import draft_length
from turntree.agents.engines.vllm import compat

_FINE, _IN_PIECES = 256, 512
"""Tokens up to which graphs are 8 apart, and 16 apart; so many have graphs in pieces, beyond graphs are 64 apart."""


def graph_sizes(rows: int, longest: int) -> dict[str, Any]:
    """vLLM's ``compilation_config`` with graphs up to the most tokens of a step with drafts.

    >>> sizes = graph_sizes(256, 8)["cudagraph_capture_sizes"]
    >>> len(sizes), sizes[:5], sizes[-2:]
    (79, [1, 2, 4, 8, 16], [2240, 2304])
    """
    most = max(count * (1 + draft_length(count, longest)) for count in range(1, rows + 1))
    sizes = {1, 2, 4, *range(8, _FINE, 8), *range(_FINE, _IN_PIECES, 16), *range(_IN_PIECES, most, 64), most}
    return {"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": sorted(n for n in sizes if n <= most)}


def install(runner: Any) -> None:
    """Let a model runner with turntree's drafter on a GPU have both families of graphs; others stay as they are.

    Args:
        runner: A ``GPUModelRunner`` of vLLM's V1 engine, whose graphs are not captured yet.
    """
    ours = hasattr(getattr(runner, "drafter", None), "bind")
    if ours and runner.device.type == "cuda" and compat.is_checked():
        DraftGraphs(runner, runner.num_spec_tokens)


class DraftGraphs:
    """The graphs of a model runner whose requests have drafts."""

    def __init__(self, runner: Any, longest: int) -> None:
        """Change a runner whose graphs are not captured yet.

        Args:
            runner: A ``GPUModelRunner`` of vLLM's V1 engine.
        """
        self._longest = longest
        self._dispatcher = runner.cudagraph_dispatcher
        self._full: Any = importlib.import_module("vllm.config").CUDAGraphMode.FULL
        self._vllm_config = runner.vllm_config
        self._has_both = False
        """Whether there is the second family."""
        self._captured: Any = None
        """Mode that is captured now."""
        self._most_queries = 0
        """Most tokens of a request in the step that is dispatched."""
        self._upstream = {
            name: getattr(runner, name)
            for name in (
                "_check_and_update_cudagraph_mode",
                "_determine_batch_execution_and_padding",
                "_dummy_run",
                "_build_attention_metadata",
            )
        } | {"dispatch": self._dispatcher.dispatch}
        runner.uniform_decode_query_len = self._dispatcher.uniform_decode_query_len = 1
        runner._check_and_update_cudagraph_mode = self.choose
        runner._determine_batch_execution_and_padding = self.determine
        runner._dummy_run = self.dummy_run
        runner._build_attention_metadata = self.build_attention_metadata
        self._dispatcher.dispatch = self.dispatch

    def choose(
        self, attention_backends: Sequence[Any], kv_cache_groups: Sequence[Any], *args: Any, **kwargs: Any
    ) -> None:
        """As vLLM's, with the second family where the attention allows it."""
        self._upstream["_check_and_update_cudagraph_mode"](attention_backends, kv_cache_groups, *args, **kwargs)
        config, keys = self._dispatcher.compilation_config, self._dispatcher.cudagraph_keys
        mode = self._dispatcher.cudagraph_mode
        if not mode.separate_routine() or mode.decode_mode() != self._full:
            return
        for backends, group in zip(attention_backends, kv_cache_groups, strict=True):
            if not all(self._takes_unequal(backend, group.kv_cache_spec) for backend in backends):
                return
        self._has_both = True
        for pieces in (keys[kind] for kind in keys if kind != self._full):
            pieces.intersection_update([key for key in pieces if key.num_tokens <= _IN_PIECES])
        for size, adapters in product(config.cudagraph_capture_sizes, self._dispatcher._get_lora_cases()):
            key = self._dispatcher._create_padded_batch_descriptor(size, False, adapters > 0, adapters)
            self._dispatcher.add_cudagraph_key(self._full, key)

    def _takes_unequal(self, backend: Any, spec: Any) -> bool:
        """Whether graphs of an attention hold for requests of unequal lengths."""
        support = backend.get_builder_cls().get_cudagraph_support(self._vllm_config, spec)
        return bool(backend.get_name() == "FLASH_ATTN" or support.name == "ALWAYS")

    def determine(self, *args: Any, max_num_scheduled_tokens: int, **kwargs: Any) -> Any:
        """As vLLM's; a request with more tokens than a draft and one reads its prompt."""
        self._most_queries = max_num_scheduled_tokens
        determine = self._upstream["_determine_batch_execution_and_padding"]
        return determine(*args, max_num_scheduled_tokens=max_num_scheduled_tokens, **kwargs)

    def dispatch(self, *args: Any, valid_modes: Any = None, invalid_modes: Any = None, **kwargs: Any) -> Any:
        """As vLLM's, among the modes that a step may have."""
        if self._has_both and self._captured is not None:
            valid_modes = valid_modes or {self._captured}
        elif self._has_both and self._most_queries > 1 + self._longest:
            invalid_modes = {self._full, *(invalid_modes or ())}
        return self._upstream["dispatch"](*args, valid_modes=valid_modes, invalid_modes=invalid_modes, **kwargs)

    def dummy_run(self, num_tokens: int, cudagraph_runtime_mode: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's."""
        self._captured = cudagraph_runtime_mode
        try:
            return self._upstream["_dummy_run"](num_tokens, cudagraph_runtime_mode, *args, **kwargs)
        finally:
            self._captured = None

    def build_attention_metadata(self, *args: Any, max_query_len: int, **kwargs: Any) -> Any:
        """As vLLM's; graphs of the second family are captured with the kernel of their few queries a request."""
        if self._has_both and self._captured == self._full:
            max_query_len = min(max_query_len, 1 + self._longest)
        return self._upstream["_build_attention_metadata"](*args, max_query_len=max_query_len, **kwargs)
