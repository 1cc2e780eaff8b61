"""Which CUDA graph vLLM takes for a step, by default and with ``speculation=[tree,graphs]``. No graph runs here."""

from __future__ import annotations

from importlib import resources
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

pytestmark = pytest.mark.vllm

ROWS, DRAFT = 256, 8
OURS = OmegaConf.load(
    str(resources.files("turntree.configs").joinpath("speculation", "graphs.yaml"))
).actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config
DEFAULT = SimpleNamespace(cudagraph_mode="FULL_AND_PIECEWISE", max_cudagraph_capture_size=512)


def graph(settings: Any, tokens: int, *, alike: bool) -> str:
    """Kind of the graph of a step of so many tokens; ``alike``: all requests have drafts of the greatest length."""
    pytest.importorskip("vllm", reason="needs vLLM; see make test-vllm")
    from vllm.config import CompilationConfig, CUDAGraphMode
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    most, mode = settings.max_cudagraph_capture_size, CUDAGraphMode[settings.cudagraph_mode]
    compilation = SimpleNamespace(
        cudagraph_mode=mode,
        max_cudagraph_capture_size=most,
        cudagraph_capture_sizes=[1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)],
        compile_sizes=None,
        cudagraph_specialize_lora=False,
        is_attention_compiled_piecewise=lambda: True,
        mode=None,
        splitting_ops=[],
        pass_config=SimpleNamespace(enable_sp=False),
    )
    CompilationConfig.adjust_cudagraph_sizes_for_spec_decode(compilation, 1 + DRAFT, 1)
    config = SimpleNamespace(
        compilation_config=compilation,
        scheduler_config=SimpleNamespace(max_num_seqs=ROWS),
        lora_config=None,
        num_speculative_tokens=DRAFT,
    )
    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(mode, 1 + DRAFT)
    return str(dispatcher.dispatch(tokens, uniform_decode=alike)[0].name)


@pytest.mark.parametrize("tokens", [ROWS, ROWS + 100, 2000])
def test_drafts_of_unequal_lengths_have_a_whole_graph(tokens: int) -> None:
    assert graph(OURS, tokens, alike=False) == graph(OURS, tokens, alike=tokens % (1 + DRAFT) == 0) == "FULL"


def test_by_default_only_drafts_of_the_greatest_length_have_one_and_only_few_requests() -> None:
    assert graph(DEFAULT, 9 * 32, alike=True) == "FULL"
    assert graph(DEFAULT, 9 * 32 - 1, alike=False) == "PIECEWISE"
    assert graph(DEFAULT, 9 * 64, alike=True) == "NONE"
