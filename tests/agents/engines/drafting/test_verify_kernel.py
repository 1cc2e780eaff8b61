import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interpreter import python

pytest.importorskip("triton", reason="the kernel needs Triton, which PyTorch has with CUDA; see make test-sglang")

import compared_draws

from turntree.agents.engines.drafting import verify_kernel

pytestmark = [pytest.mark.sglang, pytest.mark.once]
KERNELS = (verify_kernel._draw, verify_kernel._merge, verify_kernel._match)
OFF_BY = 4e-6  #: maximum difference of a log-probability: four units in the last position of the largest one here


ONE_PROGRAM = "from turntree.agents.engines.drafting import verify_kernel; verify_kernel.PROGRAMS = 1"
#: faults, each with the figure that must differ
FAULTS = {
    "from turntree.agents.engines.drafting import noise; noise.FIRST += 2": "other_tokens",
    "import fused_draws; fused_draws.GREEDY = 0.8": "other_ranks",
    "import fused_draws; fused_draws.NONE = -2": "other_kept",
}


def compared(*codes: str, device: str = "cpu") -> dict[str, dict[str, float]]:
    program = Path(compared_draws.__file__)
    mode = {"TRITON_INTERPRET": "1"} if device == "cpu" else {}
    run = python("-W", "ignore", str(program), device, *codes, env={**os.environ, **mode})
    assert run.returncode == 0, run.stderr
    return dict(zip(codes, map(json.loads, run.stdout.splitlines()), strict=True))


@pytest.fixture(scope="module")
def interpreted() -> dict[str, dict[str, float]]:
    return compared("", ONE_PROGRAM, *FAULTS)


def check(found: dict[str, float], batches: int = 3) -> None:
    assert found["rows"] == batches * (13 + 4)
    assert (found["other_tokens"], found["other_ranks"], found["other_kept"]) == (0, 0, 0)
    assert found["kept"] == batches * (3 + 1 + 6 + 2)
    assert found["logprob_error"] < OFF_BY


def test_interpreted_they_draw_score_and_keep_what_plain_operations_do(interpreted: dict[str, Any]) -> None:
    check(interpreted[""])


def test_a_row_read_by_one_program_has_the_same_token_as_by_several(interpreted: dict[str, Any]) -> None:
    check(interpreted[ONE_PROGRAM], 1)


@pytest.mark.parametrize(("fault", "noticed"), FAULTS.items())
def test_other_noise_and_another_end_are_noticed(interpreted: dict[str, Any], fault: str, noticed: str) -> None:
    """Control: a multiplier of the hash that is nearly right; other requests taken for greedy ones; another mark."""
    assert interpreted[fault][noticed] > 0


def compiled(values: str) -> str:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    pointers = {"parts": "*fp64", "rows": "*i64", "ends": "*i32", "positions": "*i64", "indices": "*i32"}
    numbers = dict.fromkeys(("shift", "count", "all_rows", "drafted", "split", "length", "stride", "size"), "i32")
    types = {"values": values, **pointers, **numbers, "BLOCK": "constexpr"}
    positions: Any = {name: (position,) for position, name in enumerate(types)}
    aligned = {positions[name]: [["tt.divisibility", 16]] for name in ("values", "stride", "size")}
    source = ASTSource(verify_kernel._draw, types, {positions["BLOCK"]: verify_kernel.BLOCK}, aligned)
    options = {"num_warps": 8, "enable_fp_fusion": False}
    return str(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])


@pytest.mark.parametrize("values", ["*bf16", "*fp32"])
def test_compiled_for_a_gpu_they_divide_as_exactly_as_vllm_and_read_16_bytes_at_once(values: str) -> None:
    ptx = compiled(values)
    assert "div.rn.f32" in ptx
    assert "div.full.f32" not in ptx
    assert "ld.global.v4.b32" in ptx


def test_arguments_that_change_between_steps_recompile_nothing() -> None:
    # Unless told otherwise, Triton compiles once per pattern of arguments that are 1 or divisible by 16 and of aligned
    # tensors. Only what is the same in every step of a model may be specialised.
    looked_at = {
        parameter.name
        for kernel in KERNELS
        for parameter in kernel.params
        if not (parameter.do_not_specialize and parameter.do_not_specialize_on_alignment)
    }
    assert looked_at == {"values", "stride", "size", "BLOCK", "AT_ONCE"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; the interpreter's test runs anywhere")
def test_on_a_gpu_they_do_the_same_and_compile_nothing_after_the_warm_up() -> None:
    check(compared("", device="cuda")[""])
    make = np.random.default_rng(0)
    logits = torch.from_numpy(make.normal(size=(64, 151_936))).bfloat16().cuda()
    verify_kernel.warm_up(logits)
    before = variants()
    for requests in (1, 16, 33):
        ends = torch.arange(2, 2 * requests + 1, 2, dtype=torch.int32, device="cuda")
        rows = torch.zeros((3, requests), dtype=torch.int64, device="cuda")
        positions = torch.zeros(64, dtype=torch.int64, device="cuda")
        indices = torch.arange(64, dtype=torch.int32, device="cuda")
        count = min(64, 2 * requests)
        ends = ends.clamp(max=count)
        found = verify_kernel.draw_rows(logits[:count], rows, positions, indices, ends=ends, width=2)
        verify_kernel.match_rows(found, found[0, 1:], ends, 2)
        verify_kernel.draw_rows(logits[:requests], rows, positions, indices[1:], shift=-1)
    assert variants() == before


def variants() -> int:
    return sum(len(caches[0]) for kernel in KERNELS for caches in kernel.device_caches.values())
