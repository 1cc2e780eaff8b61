import numpy as np
import pytest
import torch

from turntree.agents.engines.drafting import noise
from turntree.agents.engines.drafting import race as race_module
from turntree.agents.engines.drafting.race import race, race_by_tensors
from turntree.spec_tree.rules.noise import exponential

RNG = np.random.default_rng(0)
SEEDS = RNG.integers(0, 1 << 63, size=300).astype(np.uint64) * 2 + 1
POSITIONS = RNG.integers(0, 10_000, size=300)


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]
)
def test_the_noise_of_a_device_has_the_bits_of_the_reference(device):
    seeds = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0], np.uint64)[:, None, None]
    positions = np.array([0, 1, 17, 100_000])[None, :, None], np.arange(20_000)[None, None]
    ours = noise.exponential(*(torch.from_numpy(one).to(device) for one in (seeds.view(np.int64), *positions)))
    np.testing.assert_array_equal(ours.cpu().numpy(), exponential(seeds, *positions))


def distributions(size: int, scale: float, dtype: torch.dtype) -> torch.Tensor:
    logits = torch.from_numpy(np.random.default_rng(size).normal(size=(300, size)) * scale).to(dtype)
    if size > 2:
        logits[:, ::3] = float("-inf")
    return logits.softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "scale"), [(1, 1.0), (2, 0.0), (129, 0.1), (1000, 3.0), (1000, 12.0)])
@pytest.mark.parametrize("way", [race, race_by_tensors])
def test_the_earliest_clock_wins(way, size, scale, dtype):
    p = distributions(size, scale, dtype)
    clocks = exponential(SEEDS[:, None], POSITIONS[:, None], np.arange(size))
    with np.errstate(divide="ignore"):
        expected = (clocks / p.double().numpy()).argmin(-1)
    np.testing.assert_array_equal(way(p, SEEDS, POSITIONS).numpy(), expected)


def test_memory_for_clocks_is_bounded_without_changing_the_draw(monkeypatch):
    p = distributions(129, 1.0, torch.float64)
    whole = race_by_tensors(p, SEEDS, POSITIONS)
    monkeypatch.setattr(race_module, "AT_ONCE", 300)
    assert torch.equal(race_by_tensors(p, SEEDS, POSITIONS), whole)


@pytest.mark.parametrize("way", [race, race_by_tensors])
@pytest.mark.parametrize("gap", [0.0, 2.0**-52, 1e-9, 1e-4, 1.0])
def test_clocks_that_ring_nearly_at_once_are_told_apart(way, gap):
    # Masses in proportion to the clocks: all clocks of a row ring at once, up to rounding and ``gap``.
    rng = np.random.default_rng(2)
    seeds, positions = np.arange(20_000, dtype=np.uint64), rng.integers(0, 1000, 20_000)
    clocks = exponential(seeds[:, None], positions[:, None], np.arange(5))
    p = clocks * (1 + gap * rng.random(clocks.shape))
    drawn = way(torch.from_numpy(p), seeds, positions).numpy()
    np.testing.assert_array_equal(drawn, (clocks / p).argmin(-1))
