from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turntree.agents.engines.drafting.step_bound import VERIFIED, common_length
from turntree.agents.engines.vllm.graphs import DraftGraphs, graph_sizes

pytestmark = pytest.mark.vllm

ROWS, LONGEST = 256, 8
VLLMS_OWN = {
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
                scheduler_config=SimpleNamespace(max_num_seqs=ROWS, max_num_batched_tokens=8192),
                parallel_config=SimpleNamespace(
                    data_parallel_size=1, pipeline_parallel_size=1, decode_context_parallel_size=1
                ),
                lora_config=None,
                num_speculative_tokens=longest,
            )
        )
        self.vllm_config = self.cudagraph_dispatcher.vllm_config
        self.uniform_decode_query_len = 1 + longest
        self.queries: list[int] = []
        self.drafter = SimpleNamespace(lengths=())

    def _check_and_update_cudagraph_mode(self, attention_backends: Any, kv_cache_groups: Any) -> None:
        from vllm.config import CompilationConfig

        if self.uniform_decode_query_len > 1:
            CompilationConfig.adjust_cudagraph_sizes_for_spec_decode(self.compilation, self.uniform_decode_query_len, 1)
        self.cudagraph_dispatcher.initialize_cudagraph_keys(self.mode, self.uniform_decode_query_len)

    def _determine_batch_execution_and_padding(
        self, num_tokens: int, rows: int, *, max_num_scheduled_tokens: int, force_uniform_decode: Any = None
    ) -> Any:
        most = self.uniform_decode_query_len
        uniform = max_num_scheduled_tokens == most and num_tokens == most * rows
        if force_uniform_decode is not None:
            uniform = force_uniform_decode
        return self.cudagraph_dispatcher.dispatch(num_tokens=num_tokens, uniform_decode=uniform)

    def _warmup_and_capture(self, desc: Any, mode: Any) -> Any:
        return self._dummy_run(desc.num_tokens, mode, desc.uniform)

    def _dummy_run(self, num_tokens: int, cudagraph_runtime_mode: Any, uniform_decode: bool) -> Any:
        queries = self.uniform_decode_query_len if uniform_decode else num_tokens
        self._build_attention_metadata(max_query_len=queries)
        rows = num_tokens // queries
        return self._determine_batch_execution_and_padding(
            num_tokens, rows, max_num_scheduled_tokens=queries, force_uniform_decode=uniform_decode
        )

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
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

    if name == "TRITON_ATTN":
        return TritonAttentionBackend
    builder = SimpleNamespace(get_cudagraph_support=lambda config, spec: AttentionCGSupport.UNIFORM_BATCH)
    return SimpleNamespace(get_name=lambda: name, get_builder_cls=lambda: builder)


def whole(made: Runner) -> set[Any]:
    keys: set[Any] = made.cudagraph_dispatcher.cudagraph_keys[made.mode.decode_mode()]
    return keys


def modes(made: Runner, rows: int, *, shortest: int, longest: int) -> set[str]:
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
    plain = runner(VLLMS_OWN, 0, ours=False)
    for rows in (1, 3, 100, 256):
        steps = [
            made._determine_batch_execution_and_padding(rows, rows, max_num_scheduled_tokens=1)
            for made in (ours, plain)
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
            captured = ours._warmup_and_capture(key, mode)
            assert captured == (mode, key)
            wanted = 1 if key.uniform else key.num_tokens if mode.name == "PIECEWISE" else min(9, key.num_tokens)
            assert ours.queries == [wanted]


def test_attention_that_takes_any_batch_has_whole_graphs_with_drafts() -> None:
    triton = runner(graph_sizes(ROWS, LONGEST), backend="TRITON_ATTN")
    assert modes(triton, 32, shortest=1, longest=9) == modes(triton, 64, shortest=1, longest=1) == {"FULL"}


@pytest.fixture(scope="module")
def one_length() -> Runner:
    return runner(graph_sizes(ROWS, 32), 32, backend="FLASHINFER")


def alike(made: Runner, rows: int, length: int) -> tuple[Any, Any]:
    found = made._determine_batch_execution_and_padding(rows * (1 + length), rows, max_num_scheduled_tokens=1 + length)
    return found[0], found[1]


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 31, 33, 64, 65, 227, 228, 255, 256])
def test_attention_that_takes_drafts_of_one_length_alone_has_whole_graphs_for_those(
    one_length: Runner, rows: int
) -> None:
    choices = one_length.drafter.lengths
    lengths = [common_length(np.full(rows, most, np.int32), choices, 8192) for most in range(33)]
    assert lengths[0] == 0
    assert lengths[-1] >= (8 if rows < 228 else 4)
    for length in lengths:
        mode, key = alike(one_length, rows, length)
        assert (mode.name, key.uniform) == ("FULL", True)
        assert key.num_reqs >= rows
        assert key.num_tokens == key.num_reqs * (1 + length)
        assert length == 0 or key.num_tokens <= VERIFIED


def test_a_graph_of_one_length_takes_all_of_its_requests_as_decoding(one_length: Runner) -> None:
    """By the rule with which vLLM's FlashInfer separates decoding requests from prompts."""
    import torch
    from vllm.v1.attention.backends.utils import split_decodes_and_prefills

    _, key = alike(one_length, 33, 8)
    assert key.num_reqs == 40
    begins = torch.arange(key.num_reqs + 1).clamp(max=33) * 9  # as vLLM pads a step
    step = SimpleNamespace(
        max_query_len=9, num_reqs=40, num_actual_tokens=key.num_tokens, query_start_loc_cpu=begins, is_prefilling=None
    )
    split = split_decodes_and_prefills(step, decode_threshold=33, require_uniform=True)
    assert split == (40, 0, key.num_tokens, 0)


def test_graphs_of_one_length_are_captured_with_that_many_queries(one_length: Runner) -> None:
    captured = 0
    for mode, keys in one_length.cudagraph_dispatcher.get_capture_descs():
        for key in keys:
            one_length.queries.clear()
            assert one_length._warmup_and_capture(key, mode) == (mode, key)
            assert one_length.queries == [key.num_tokens // key.num_reqs if key.uniform else key.num_tokens]
            captured += mode.name == "FULL"
    assert captured < 120
    assert one_length.uniform_decode_query_len == 1


def test_a_step_of_one_length_keeps_to_the_modes_that_it_may_have(one_length: Runner) -> None:
    from vllm.config import CUDAGraphMode

    alike(one_length, 16, 8)
    dispatch = one_length.cudagraph_dispatcher.dispatch
    with_tokens = {"num_tokens": 16 * 9, "uniform_decode": True}
    assert dispatch(**with_tokens)[0] == CUDAGraphMode.FULL
    assert dispatch(**with_tokens, valid_modes={CUDAGraphMode.NONE})[0] == CUDAGraphMode.NONE
    mode, key = dispatch(**with_tokens, invalid_modes={CUDAGraphMode.FULL})
    assert (mode, key.uniform) == (CUDAGraphMode.PIECEWISE, False)


def test_drafts_of_unequal_lengths_run_in_pieces_where_attention_does_not_take_them(one_length: Runner) -> None:
    assert (
        modes(one_length, 32, shortest=1, longest=9) == modes(one_length, 4, shortest=20, longest=100) == {"PIECEWISE"}
    )


@pytest.mark.parametrize(
    ("backend", "what", "name", "value"),
    [
        ("FLASHINFER", "parallel_config", "data_parallel_size", 2),
        ("FLASHINFER", "parallel_config", "pipeline_parallel_size", 2),
        ("FLASHINFER", "parallel_config", "decode_context_parallel_size", 2),
        ("FLASHINFER", "pass_config", "enable_sp", True),
        ("FLASHINFER", "", "lora_config", True),
        ("GDN_ATTN", "", "lora_config", None),
        ("FLASHINFER GDN_ATTN", "", "lora_config", None),
    ],
)
def test_where_others_pad_the_same_steps_or_drafts_need_one_length_only_those_without_drafts_have_graphs(
    backend: str, what: str, name: str, value: Any
) -> None:
    made = Runner(graph_sizes(ROWS, LONGEST), LONGEST)
    settings = {"": made.vllm_config, "pass_config": made.compilation.pass_config}
    setattr(settings.get(what) or getattr(made.vllm_config, what), name, value)
    DraftGraphs(made, LONGEST)
    if name == "lora_config":
        made.vllm_config.lora_config = value and SimpleNamespace(max_loras=1, specialize_active_lora=False)
    backends = [[attention(name)] for name in backend.split()]
    made._check_and_update_cudagraph_mode(backends, [SimpleNamespace(kv_cache_spec=None) for _ in backends])
    assert made.drafter.lengths == ()
    assert whole(made)
    assert all(key.num_tokens == key.num_reqs for key in whole(made))


@pytest.mark.parametrize(("sizes", "batched", "most"), [(None, 1024, 1024), ([1, 2, 4, 8], 8192, 8)])
def test_no_graph_is_larger_than_a_step_or_than_the_caller_s_largest(
    sizes: list[int] | None, batched: int, most: int
) -> None:
    settings = graph_sizes(ROWS, LONGEST)
    made = Runner(settings | ({"cudagraph_capture_sizes": sizes} if sizes else {}), LONGEST)
    made.vllm_config.scheduler_config.max_num_batched_tokens = batched
    DraftGraphs(made, LONGEST)
    made._check_and_update_cudagraph_mode([[attention("FLASHINFER")]], [SimpleNamespace(kv_cache_spec=None)])
    drafted = [key for key in whole(made) if key.num_tokens > key.num_reqs]
    assert (not drafted) == bool(sizes) == (made.drafter.lengths == ())
    assert all(key.num_tokens <= most for key in drafted)


def test_vllm_s_own_graphs_are_for_drafts_of_the_greatest_length_and_few_requests_alone() -> None:
    default = runner(VLLMS_OWN, ours=False)
    assert modes(default, 32, shortest=9, longest=9) == {"FULL"}
    assert modes(default, 32, shortest=1, longest=1) == modes(default, 32, shortest=1, longest=8) == {"PIECEWISE"}
    assert modes(default, 64, shortest=9, longest=9) == {"NONE"}
