"""SGLang's attention backend and captured graphs for each width of a verify pass.

The width of a pass is its number of tokens per request. On an accelerator, SGLang 0.5.12 lays out the index arrays and
the mask of its attention backend for one width, and captures CUDA graphs for that width. Every other width needs its
own attention backend and graphs. (SGLang does the same for the step counts of its adaptive EAGLE.) FlashInfer's
workspace (512 MiB for Qwen2) is scratch memory of one pass, so all widths share it. On the CPU, attention takes any
width, and there are no graphs.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from turntree.agents.engines.sglang.worker.refusals import RefusedSettings

logger = logging.getLogger(__name__)


class WidthBackend(NamedTuple):
    attention: Any
    graphs: Any  #: SGLang's runner of captured graphs; ``None`` without graphs


class BackendsByWidth:
    """Installs the attention backend and the graphs of a width before each pass."""

    def __init__(self, model_runner: Any, widths: tuple[int, ...], *, graphs: Callable[..., Any] | None = None) -> None:
        """Create the backends of the ascending ``widths``, except the last: SGLang has created that one.

        Raises:
            RefusedSettings: If several widths have graphs and LoRA adapters are served.
        """
        self._runner = model_runner
        self._backends: dict[int, WidthBackend] = {}
        if model_runner.device == "cpu":
            return
        if len(widths) > 1 and model_runner.server_args.enable_lora and model_runner.graph_runner is not None:
            raise RefusedSettings(
                f"enable_lora needs one width of a verify pass, got {', '.join(map(str, widths))}: SGLang keeps a "
                "batch's adapters only for the graphs of the last captured width; set widths to the widest alone "
                "(TURNTREE_SGLANG), disable_cuda_graph, or merge the adapter into the weights"
            )
        self._backends[widths[-1]] = WidthBackend(model_runner.attn_backend, model_runner.graph_runner)
        for width in widths[:-1]:
            logger.info("preparing passes of %d tokens a request", width)
            self._backends[width] = self._make(width, graphs)

    def use(self, width: int) -> None:
        """Run the next verify pass at ``width``."""
        if self._backends:
            self._runner.attn_backend, self._runner.graph_runner = self._backends[width]

    @property
    def most_rows(self) -> int:
        """Number of requests to which SGLang may pad the next pass; 0 if the pass runs without graphs."""
        graphs = self._runner.graph_runner if self._backends else None
        return 0 if graphs is None else int(graphs.max_bs)

    def _make(self, width: int, graphs: Callable[..., Any] | None) -> WidthBackend:
        runner = self._runner
        with _as_if_widest(runner, width):
            attention = runner._get_attention_backend()
            if runner.graph_runner is None:
                return WidthBackend(attention, None)
            if graphs is None:
                graphs = importlib.import_module("sglang.srt.model_executor.cuda_graph_runner").CudaGraphRunner
            captured = graphs(
                runner, attn_backend=attention, speculative_num_steps=width - 1, speculative_num_draft_tokens=width
            )
        return WidthBackend(attention, captured)


@contextmanager
def _as_if_widest(runner: Any, width: int) -> Iterator[None]:
    # Attention reads the width from the server arguments, and a capture replaces the runner's attention: restore both.
    arguments = runner.server_args
    before = (
        arguments.speculative_num_draft_tokens,
        arguments.speculative_num_steps,
        runner.attn_backend,
        runner.init_new_workspace,
    )
    arguments.speculative_num_draft_tokens, arguments.speculative_num_steps = width, width - 1
    try:
        yield
    finally:
        (
            arguments.speculative_num_draft_tokens,
            arguments.speculative_num_steps,
            runner.attn_backend,
            runner.init_new_workspace,
        ) = before
