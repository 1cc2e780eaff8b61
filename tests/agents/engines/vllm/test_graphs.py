"""Which CUDA graph vLLM takes for a step with turntree's drafter, by vLLM's own dispatcher. No graph runs here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turntree.agents.engines.vllm.overlap.arguments import whole_graphs

pytestmark = pytest.mark.vllm

ROWS, DRAFT = 256, 8
DEFAULT = {
    "cudagraph_mode": "FULL_AND_PIECEWISE",
    "cudagraph_capture_sizes": [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)],
}


def dispatcher(settings: dict[str, Any], draft: int) -> Any:
    pytest.importorskip("vllm", reason="needs vLLM; see make test-vllm")
    from vllm.config import CompilationConfig, CUDAGraphMode
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    mode, sizes = CUDAGraphMode[settings["cudagraph_mode"]], settings["cudagraph_capture_sizes"]
    compilation = SimpleNamespace(
        cudagraph_mode=mode,
        max_cudagraph_capture_size=sizes[-1],
        cudagraph_capture_sizes=sizes,
        compile_sizes=None,
        cudagraph_specialize_lora=False,
        is_attention_compiled_piecewise=lambda: True,
        mode=None,
        splitting_ops=[],
        pass_config=SimpleNamespace(enable_sp=False),
    )
    CompilationConfig.adjust_cudagraph_sizes_for_spec_decode(compilation, 1 + draft, 1)
    config = SimpleNamespace(
        compilation_config=compilation,
        scheduler_config=SimpleNamespace(max_num_seqs=ROWS),
        lora_config=None,
        num_speculative_tokens=draft,
    )
    made = CudagraphDispatcher(config)
    made.initialize_cudagraph_keys(mode, 1 + draft)
    return made


def graphs(settings: dict[str, Any], rows: int, *, shortest: int, longest: int, draft: int = DRAFT) -> set[str]:
    """Kinds of graphs of 50 random steps of ``rows`` requests with drafts of so many tokens."""
    made, rng = dispatcher(settings, draft), np.random.default_rng(rows)
    kinds = set()
    for _ in range(50):
        lengths = 1 + rng.integers(shortest, longest + 1, rows)
        uniform = bool((lengths == 1 + draft).all())
        kinds.add(str(made.dispatch(int(lengths.sum()), uniform_decode=uniform)[0].name))
    return kinds


@pytest.mark.parametrize("rows", [1, 2, 4, 17, 64, 255, 256])
@pytest.mark.parametrize(("shortest", "longest"), [(0, 0), (0, DRAFT), (DRAFT, DRAFT)])
def test_every_decoding_step_replays_a_whole_graph(rows: int, shortest: int, longest: int) -> None:
    assert graphs(whole_graphs(ROWS, DRAFT), rows, shortest=shortest, longest=longest) == {"FULL"}


def test_by_default_only_drafts_of_the_greatest_length_have_one_and_only_few_requests() -> None:
    assert graphs(DEFAULT, 32, shortest=DRAFT, longest=DRAFT) == {"FULL"}
    assert graphs(DEFAULT, 32, shortest=0, longest=0) == graphs(DEFAULT, 32, shortest=0, longest=7) == {"PIECEWISE"}
    assert graphs(DEFAULT, 64, shortest=DRAFT, longest=DRAFT) == {"NONE"}
