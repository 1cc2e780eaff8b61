"""CUDA graphs of the whole model for steps with drafts.

With a drafter, vLLM 0.24 captures graphs of the whole model only for steps in which every request has a draft of the
greatest length, up to 512 tokens. All other steps, with and without drafts, run piecewise (several graphs, attention
outside). vLLM's mode for any batch (``FULL``) cannot use the faster attention kernels for few queries per request. With
this module, steps without drafts use the graphs that vLLM captures without a drafter. Steps with drafts use additional
graphs of one of two kinds:

- *by tokens*: a graph for a total number of tokens, with up to 1 + ``longest`` tokens per request. It needs attention
  kernels that take unequal lengths in a graph: FlashAttention, and backends that take any batch in ``FULL`` (Triton).
- *by length*: a graph for one draft length and a number of requests, for attention kernels that take only drafts of
  equal length (FlashInfer on Blackwell). The drafter then gives all drafts of a step one common length.

Steps that process prompts run piecewise, as without a drafter.

Patches the model runner of vLLM 0.24 and 0.28: ``uniform_decode_query_len``, ``_check_and_update_cudagraph_mode``
(adds the graphs), ``_determine_batch_execution_and_padding``, ``_dummy_run`` and ``_warmup_and_capture`` (choose the
graphs of a step), ``_build_attention_metadata`` (tokens per request while graphs by tokens are captured), and the
method ``dispatch`` of its cudagraph dispatcher. Tests: ``test_graphs.py``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

from turntree.agents.engines.drafting.step_bound import VERIFIED, draft_length
from turntree.agents.engines.vllm import compat

#: Graph sizes are 8 tokens apart up to _DENSE, 16 apart up to _PIECEWISE, and 64 apart beyond.
#: Piecewise graphs exist up to _PIECEWISE tokens.
_DENSE, _PIECEWISE = 256, 512


def graph_sizes(rows: int, longest: int) -> dict[str, Any]:
    """Return vLLM's ``compilation_config`` with graph sizes up to the largest step with drafts.

    >>> sizes = graph_sizes(256, 8)["cudagraph_capture_sizes"]
    >>> len(sizes), sizes[:5], sizes[-2:]
    (79, [1, 2, 4, 8, 16], [2240, 2304])
    """
    most = _most_tokens(rows, longest)
    sizes = {1, 2, 4, *range(8, _DENSE, 8), *range(_DENSE, _PIECEWISE, 16), *range(_PIECEWISE, most, 64), most}
    return {"cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": sorted(n for n in sizes if n <= most)}


def _most_tokens(rows: int, longest: int) -> int:
    return max(count * (1 + draft_length(count, longest)) for count in range(1, rows + 1))


def install(runner: Any) -> None:
    """Add graphs for drafts to a model runner with turntree's drafter on a GPU; leave other runners unchanged.

    The runner's graphs must not be captured yet.
    """
    ours = hasattr(getattr(runner, "drafter", None), "bind")
    if ours and runner.device.type == "cuda" and compat.is_checked():
        DraftGraphs(runner, runner.num_spec_tokens)


def draft_lengths(longest: int) -> list[int]:
    """Return the draft lengths with graphs, for kernels that need drafts of equal length.

    >>> draft_lengths(8), draft_lengths(12)
    ([2, 4, 8], [2, 4, 8, 12])
    """
    return [*(length for length in (2, 4, 8, 16, 32) if length < longest), longest]


def _batches(rows: int, length: int, longest: int, tokens: int) -> list[int]:
    # The numbers of requests for which a graph of this draft length is captured, with at most `tokens` tokens each.
    most = min(rows, tokens // (1 + length))
    counts = sorted({1, 2, 4, *range(8, 64, 8), *range(64, most, 32), most})
    return [n for n in counts if n <= most and length <= draft_length(n, longest)]


class DraftGraphs:
    """Patches of one model runner that add its graphs for drafts."""

    def __init__(self, runner: Any, longest: int) -> None:
        self._longest = longest
        self._runner = runner
        self._dispatcher = runner.cudagraph_dispatcher
        self._full: Any = importlib.import_module("vllm.config").CUDAGraphMode.FULL
        self._vllm_config = runner.vllm_config
        self._by_tokens = False  #: whether drafts of any lengths have graphs
        #: keys of the graphs by length: for each number of tokens per request, ascending in requests
        self._by_length: dict[int, list[Any]] = {}
        self._captured: Any = None  #: cudagraph mode that is being captured, ``None`` outside capture
        self._most_queries = 0  #: most tokens of one request in the step being dispatched
        self._upstream = {
            name: getattr(runner, name)
            for name in (
                "_check_and_update_cudagraph_mode",
                "_determine_batch_execution_and_padding",
                "_dummy_run",
                "_warmup_and_capture",
                "_build_attention_metadata",
            )
        } | {"dispatch": self._dispatcher.dispatch}
        # With a drafter, vLLM sets this to 1 + the longest draft. 1 gives steps without drafts plain decoding's graphs.
        runner.uniform_decode_query_len = self._dispatcher.uniform_decode_query_len = 1
        runner._check_and_update_cudagraph_mode = self.choose
        runner._determine_batch_execution_and_padding = self.determine
        runner._dummy_run = self.dummy_run
        runner._warmup_and_capture = self.warmup_and_capture
        runner._build_attention_metadata = self.build_attention_metadata
        self._dispatcher.dispatch = self.dispatch

    def choose(
        self, attention_backends: Sequence[Any], kv_cache_groups: Sequence[Any], *args: Any, **kwargs: Any
    ) -> None:
        self._upstream["_check_and_update_cudagraph_mode"](attention_backends, kv_cache_groups, *args, **kwargs)
        keys, mode = self._dispatcher.cudagraph_keys, self._dispatcher.cudagraph_mode
        # Only FULL_AND_PIECEWISE and FULL_DECODE_ONLY capture decode steps separately from prompts.
        if not mode.separate_routine() or mode.decode_mode() != self._full:
            return
        # A model may mix attention backends. A graph holds all layers, so the least capable backend decides.
        support_levels = {
            self._graph_support(backend, group.kv_cache_spec)
            for backends, group in zip(attention_backends, kv_cache_groups, strict=True)
            for backend in backends
        }
        if support_levels == {"ALWAYS"}:
            self._add_by_tokens()
            # Larger steps without prompts now have whole graphs. Drop their piecewise graphs, which cost memory and
            # start time.
            for pieces in (keys[kind] for kind in keys if kind != self._full):
                pieces.intersection_update([key for key in pieces if key.num_tokens <= _PIECEWISE])
        elif support_levels <= {"ALWAYS", "UNIFORM_BATCH"} and self._runs_alone():
            scheduler = self._vllm_config.scheduler_config
            rows, batched = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
            tokens = min(_most_tokens(rows, self._longest), VERIFIED, batched)
            # vLLM runs steps above the configured capture size without graphs.
            if tokens <= self._dispatcher.compilation_config.max_cudagraph_capture_size:
                self._add_by_length(rows, tokens)

    def _graph_support(self, backend: Any, spec: Any) -> str:
        # FlashAttention takes requests of unequal lengths in a graph, although its builder may report less.
        if backend.get_name() == "FLASH_ATTN":
            return "ALWAYS"
        support = str(backend.get_builder_cls().get_cudagraph_support(self._vllm_config, spec).name)
        # Other backends, such as linear attention, take only drafts of the configured length.
        return support if support == "ALWAYS" or backend.get_name() == "FLASHINFER" else "NEVER"

    def _runs_alone(self) -> bool:
        # Other engines, pipeline stages, ranks or LoRA adapters would pad steps to sizes without graphs by length.
        config = self._vllm_config
        parallel = config.parallel_config
        engines = parallel.data_parallel_size * parallel.pipeline_parallel_size * parallel.decode_context_parallel_size
        sequence_parallel = self._dispatcher.compilation_config.pass_config.enable_sp
        return bool(engines == 1 and not sequence_parallel and config.lora_config is None)

    def _add_by_tokens(self) -> None:
        self._by_tokens = True
        sizes = self._dispatcher.compilation_config.cudagraph_capture_sizes
        # uniform=False: the key matches any step of this many tokens, whatever the lengths of its drafts.
        for size, adapters in product(sizes, self._dispatcher._get_lora_cases()):
            key = self._dispatcher._create_padded_batch_descriptor(size, False, adapters > 0, adapters)
            self._dispatcher.add_cudagraph_key(self._full, key)

    def _add_by_length(self, rows: int, tokens: int) -> None:
        key: Any = importlib.import_module("vllm.forward_context").BatchDescriptor
        lengths = draft_lengths(self._longest)
        for length in lengths:
            queries = 1 + length
            batches = _batches(rows, length, self._longest, tokens)
            self._by_length[queries] = [key(num_tokens=n * queries, num_reqs=n, uniform=True) for n in batches]
            for descriptor in self._by_length[queries]:
                self._dispatcher.add_cudagraph_key(self._full, descriptor)
        # From now on the drafter gives all drafts of a step one of these lengths.
        self._runner.drafter.lengths = lengths

    def determine(self, *args: Any, max_num_scheduled_tokens: int, **kwargs: Any) -> Any:
        # vLLM passes `dispatch` only the step's token count, so remember the longest request's tokens here.
        self._most_queries = max_num_scheduled_tokens
        determine = self._upstream["_determine_batch_execution_and_padding"]
        with self._queries(max_num_scheduled_tokens if max_num_scheduled_tokens in self._by_length else 1):
            return determine(*args, max_num_scheduled_tokens=max_num_scheduled_tokens, **kwargs)

    def dispatch(
        self,
        num_tokens: int,
        uniform_decode: bool = False,
        *args: Any,
        valid_modes: Any = None,
        invalid_modes: Any = None,
        **kwargs: Any,
    ) -> Any:
        if uniform_decode and self._most_queries > 1:
            # All requests have equally many tokens: take the smallest graph for this draft length.
            if self._full in (valid_modes or {self._full}) and self._full not in (invalid_modes or ()):
                for key in self._by_length.get(self._most_queries, ()):
                    if key.num_tokens >= num_tokens:
                        return self._full, key
            uniform_decode = False  # no graph of this length; vLLM's uniform graphs are for one token per request
        if self._by_tokens and self._captured is not None:
            # A size may have a whole and a piecewise graph: capture the kind that vLLM requested.
            valid_modes = valid_modes or {self._captured}
        # A request with more than 1 + longest draft tokens processes a prompt, so the step runs piecewise.
        elif self._by_tokens and self._most_queries > 1 + self._longest:
            invalid_modes = {self._full, *(invalid_modes or ())}
        modes = {"valid_modes": valid_modes, "invalid_modes": invalid_modes}
        return self._upstream["dispatch"](num_tokens, uniform_decode, *args, **modes, **kwargs)

    def dummy_run(self, num_tokens: int, cudagraph_runtime_mode: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._captured = cudagraph_runtime_mode
        try:
            return self._upstream["_dummy_run"](num_tokens, cudagraph_runtime_mode, *args, **kwargs)
        finally:
            self._captured = None

    def warmup_and_capture(self, desc: Any, *args: Any, **kwargs: Any) -> Any:
        # A uniform graph (equal lengths) is captured with its own number of tokens per request.
        with self._queries(desc.num_tokens // desc.num_reqs if desc.uniform else 1):
            return self._upstream["_warmup_and_capture"](desc, *args, **kwargs)

    @contextmanager
    def _queries(self, count: int) -> Iterator[None]:
        # vLLM calls a step uniform if every request has `uniform_decode_query_len` tokens.
        before, self._runner.uniform_decode_query_len = self._runner.uniform_decode_query_len, count
        try:
            yield
        finally:
            self._runner.uniform_decode_query_len = before

    def build_attention_metadata(self, *args: Any, max_query_len: int, **kwargs: Any) -> Any:
        # A capture passes its dummy batch's token count. Cap it, so that the kernel for few queries is captured.
        if self._by_tokens and self._captured == self._full:
            max_query_len = min(max_query_len, 1 + self._longest)
        return self._upstream["_build_attention_metadata"](*args, max_query_len=max_query_len, **kwargs)
