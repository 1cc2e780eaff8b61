"""Which CUDA graph vLLM takes for a step with turntree's drafter, by vLLM's own dispatcher. No graph runs here."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turntree.agents.engines.vllm.graphs import DraftGraphs, graph_sizes

pytestmark = pytest.mark.vllm

ROWS, LONGEST = 256, 8
STOCK = {
    "cudagraph_mode": "FULL_AND_PIECEWISE",
    "cudagraph_capture_sizes": [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)],
}


class Runner:
    """The parts of vLLM's model runner that decide which graph a step replays."""

    def __init__(self, settings: dict[str, Any], longest: int) -> None:
        pytest.importorskip("vllm", reason="needs vLLM; see make test-vllm")
        from vllm.config import CUDAGraphMode
        from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

        self.mode, sizes = CUDAGraphMode[settings["cudagraph_mode"]], settings["cudagraph_capture_sizes"]
        self.compilation = SimpleNamespace(
            cudagraph_mode=self.mode,
            max_cudagraph_capture_size=sizes[-1],
            cudagraph_capture_sizes=sizes,
            compile_sizes=None,
            cudagraph_specialize_lora=False,
            is_attention_compiled_piecewise=lambda: True,
            mode=None,
            splitting_ops=[],
            pass_config=SimpleNamespace(enable_sp=False),
        )
        self.cudagraph_dispatcher = CudagraphDispatcher(
            SimpleNamespace(
                compilation_config=self.compilation,
                scheduler_config=SimpleNamespace(max_num_seqs=ROWS),
                lora_config=None,
                num_speculative_tokens=longest,
            )
        )
        self.vllm_config = self.cudagraph_dispatcher.vllm_config
        self.uniform_decode_query_len = 1 + longest
        self.queries: list[int] = []

    def _check_and_update_cudagraph_mode(self, attention_backends: Any, kv_cache_groups: Any) -> None:
        from vllm.config import CompilationConfig

        if self.uniform_decode_query_len > 1:
            CompilationConfig.adjust_cudagraph_sizes_for_spec_decode(self.compilation, self.uniform_decode_query_len, 1)
        self.cudagraph_dispatcher.initialize_cudagraph_keys(self.mode, self.uniform_decode_query_len)

    def _determine_batch_execution_and_padding(
        self, num_tokens: int, rows: int, *, max_num_scheduled_tokens: int
    ) -> Any:
        most = self.uniform_decode_query_len
        uniform = max_num_scheduled_tokens == most and num_tokens == most * rows
        return self.cudagraph_dispatcher.dispatch(num_tokens=num_tokens, uniform_decode=uniform)

    def _dummy_run(self, num_tokens: int, cudagraph_runtime_mode: Any, uniform_decode: bool) -> Any:
        queries = self.uniform_decode_query_len if uniform_decode else num_tokens
        self._build_attention_metadata(max_query_len=queries)
        return self.cudagraph_dispatcher.dispatch(num_tokens, uniform_decode=uniform_decode)

    def _build_attention_metadata(self, *, max_query_len: int) -> None:
        self.queries.append(max_query_len)


def runner(
    settings: dict[str, Any], longest: int = LONGEST, *, ours: bool = True, backend: str = "FLASH_ATTN"
) -> Runner:
    made = Runner(settings, longest)
    if ours:
        DraftGraphs(made, longest)
    made._check_and_update_cudagraph_mode([[attention(backend)]], [SimpleNamespace(kv_cache_spec=None)])
    return made


def attention(name: str) -> Any:
    """An attention of vLLM; if its graphs depend on the GPU, as where they take drafts of one length alone."""
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

    if name == "TRITON_ATTN":
        return TritonAttentionBackend
    builder = SimpleNamespace(get_cudagraph_support=lambda config, spec: AttentionCGSupport.UNIFORM_BATCH)
    return SimpleNamespace(get_name=lambda: name, get_builder_cls=lambda: builder)


def modes(made: Runner, rows: int, *, shortest: int, longest: int) -> set[str]:
    """Kinds of graphs of 50 random steps of ``rows`` requests with so many tokens."""
    rng = np.random.default_rng(rows)
    found = set()
    for _ in range(50):
        lengths = rng.integers(shortest, longest + 1, rows)
        step = made._determine_batch_execution_and_padding(
            int(lengths.sum()), rows, max_num_scheduled_tokens=int(lengths.max())
        )
        found.add(str(step[0].name))
    return found


@pytest.fixture(scope="module")
def ours() -> Runner:
    return runner(graph_sizes(ROWS, LONGEST))


@pytest.mark.parametrize("rows", [1, 2, 4, 17, 64, 255, 256])
@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 1 + LONGEST), (1 + LONGEST, 1 + LONGEST)])
def test_every_decoding_step_replays_a_whole_graph(ours: Runner, rows: int, shortest: int, longest: int) -> None:
    assert modes(ours, rows, shortest=shortest, longest=longest) == {"FULL"}


def test_steps_without_drafts_replay_the_graphs_of_an_engine_without_a_drafter(ours: Runner) -> None:
    stock = runner(STOCK, 0, ours=False)
    for rows in (1, 3, 100, 256):
        steps = [
            made._determine_batch_execution_and_padding(rows, rows, max_num_scheduled_tokens=1)
            for made in (ours, stock)
        ]
        assert steps[0] == steps[1]
        assert steps[0][1].uniform


def test_steps_that_read_prompts_run_in_pieces(ours: Runner) -> None:
    assert modes(ours, 4, shortest=20, longest=100) == {"PIECEWISE"}
    assert modes(ours, 4, shortest=400, longest=500) == {"NONE"}


def test_each_graph_is_captured_in_its_own_mode_and_for_the_queries_of_its_family(ours: Runner) -> None:
    for mode, keys in ours.cudagraph_dispatcher.get_capture_descs():
        for key in keys:
            ours.queries.clear()
            captured = ours._dummy_run(key.num_tokens, mode, key.uniform)
            assert captured == (mode, key)
            wanted = 1 if key.uniform else key.num_tokens if mode.name == "PIECEWISE" else min(9, key.num_tokens)
            assert ours.queries == [wanted]


def test_attention_that_takes_any_batch_has_whole_graphs_with_drafts() -> None:
    triton = runner(graph_sizes(ROWS, LONGEST), backend="TRITON_ATTN")
    assert modes(triton, 32, shortest=1, longest=9) == modes(triton, 64, shortest=1, longest=1) == {"FULL"}


def test_attention_that_takes_drafts_of_one_length_alone_has_whole_graphs_without_drafts() -> None:
    other = runner(graph_sizes(ROWS, LONGEST), backend="FLASHINFER")
    assert modes(other, 64, shortest=1, longest=1) == {"FULL"}
    assert modes(other, 32, shortest=1, longest=9) == {"PIECEWISE"}


def test_vllm_s_own_graphs_are_for_drafts_of_the_greatest_length_and_few_requests_alone() -> None:
    default = runner(STOCK, ours=False)
    assert modes(default, 32, shortest=9, longest=9) == {"FULL"}
    assert modes(default, 32, shortest=1, longest=1) == modes(default, 32, shortest=1, longest=8) == {"PIECEWISE"}
    assert modes(default, 64, shortest=9, longest=9) == {"NONE"}
