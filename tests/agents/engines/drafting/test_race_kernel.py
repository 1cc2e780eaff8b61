import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interpreter import python

pytest.importorskip("triton", reason="the kernel needs Triton, which PyTorch has with CUDA; see make test-sglang")

from turntree.agents.engines.drafting import race_kernel
from turntree.agents.engines.drafting.race import race, race_of_logits

pytestmark = [pytest.mark.sglang, pytest.mark.once]
BENCHMARK = Path(__file__).parents[4] / "benchmarks" / "race_kernel.py"
DIFFERING = ("clocks_with_other_bits", "other_tokens_of_probabilities", "other_tokens_of_logits")


FAULTS = ("FIRST += 2", "LN2 += 1e-14")
#: the benchmark in forks of one process that has done the slow imports, each after one more line of code. Triton
#: decides at its first import whether it interprets, hence the extra process
PROGRAM = """
import os, sys
import torch, triton.language
sys.path[0], folder, *patches = sys.argv[1:]
for number, patch in enumerate(patches):
    # A last block that is not whole, and rows of several blocks.
    sys.argv = f"- --rows 4 --vocabulary 4500 --out {folder}/{number}".split()
    if not os.fork():
        exec(patch)
        import race_kernel
        race_kernel.main()
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    folder = tmp_path_factory.mktemp("found")
    patches = ["", *(f"from turntree.agents.engines.drafting import noise; noise.{fault}" for fault in FAULTS)]
    words = ("-W", "ignore", "-c", PROGRAM, str(BENCHMARK.parent), str(folder), *patches)
    run = python(*words, env={**os.environ, "TRITON_INTERPRET": "1"})
    assert run.returncode == 0, run.stderr
    found = [json.loads((folder / str(number)).read_text())["compared"] for number in range(len(patches))]
    statuses = [int(line) for line in run.stdout.splitlines() if line.isdigit()]
    assert statuses == [any(one[name] for name in DIFFERING) for one in found]
    return dict(zip(("", *FAULTS), found, strict=True))


def test_interpreted_it_has_the_bits_of_the_noise_and_draws_the_tokens_of_the_reference(interpreted):
    found = interpreted[""]
    assert (found["rows"], found["clocks"]) == (4, 4 * 4500)
    assert {name: found[name] for name in DIFFERING} == dict.fromkeys(DIFFERING, 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_other_noise_is_noticed(interpreted: dict[str, dict[str, int]], fault: str) -> None:
    """Control: a multiplier of the hash, or a logarithm, that is nearly right."""
    assert interpreted[fault]["clocks_with_other_bits"] > 0


def compiled(*, values: str, logits: bool, fuse: bool = False) -> str:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {"values": values, "seeds": "*i64", "positions": "*i64", "winners": "*i64", "stride": "i64", "size": "i32"}
    constants: Any = {(6,): logits, (7,): race_kernel.BLOCK}
    source = ASTSource(race_kernel._race, {**types, "LOGITS": "constexpr", "BLOCK": "constexpr"}, constants)
    options = {"num_warps": 8, "enable_fp_fusion": fuse}
    ptx: str = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    return ptx


def test_compiled_for_a_gpu_the_noise_is_of_double_precision_and_nothing_in_it_is_fused() -> None:
    ptx = compiled(values="*fp32", logits=False)
    operations = set(re.findall(r"\b((?:fma|mul|add|div)[.\w]*\.f(?:32|64))\b", ptx))
    assert operations == {"mul.rn.f64", "add.rn.f64", "div.rn.f64"}
    # Python's constants come through whole: Triton's own are of single precision where nothing says otherwise.
    for constant in race_kernel.noise.LN2, *race_kernel.noise.ATANH:
        assert np.float64(constant).view(np.uint64).tobytes()[::-1].hex().upper() in ptx.upper()


def test_a_compiler_that_fuses_is_noticed() -> None:
    """Control: Triton's default."""
    assert "fma.rn.f64" in compiled(values="*fp32", logits=False, fuse=True)


@pytest.mark.parametrize("values", ["*fp32", "*bf16", "*fp64"])
def test_it_compiles_for_a_gpu_from_logits_of_any_precision(values: str) -> None:
    assert ".entry _race" in compiled(values=values, logits=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU; the interpreter's test runs anywhere")
def test_on_a_gpu_it_draws_the_tokens_of_the_cpu_with_one_launch() -> None:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(scale=3, size=(64, 151_936))).float()
    seeds, positions = rng.integers(1 << 63, size=64).astype(np.uint64), rng.integers(1000, size=64)
    distribution = logits.softmax(-1)
    wanted = race(distribution, seeds, positions)
    on = [torch.from_numpy(one).cuda() for one in (seeds.view(np.int64), positions)]
    race_kernel.race_rows(distribution.cuda(), *on, logits=False)
    with torch.profiler.profile() as profile:
        drawn = race_kernel.race_rows(distribution.cuda(), *on, logits=False)
        torch.cuda.synchronize()
    assert sum("_race" in event.name for event in profile.events() if event.device_type.name == "CUDA") == 1
    assert torch.equal(drawn.cpu(), wanted)
    assert torch.equal(race(distribution.cuda(), seeds, positions).cpu(), wanted)
    assert (race_of_logits(logits.cuda(), seeds, positions).cpu() == wanted).float().mean() > 0.98
