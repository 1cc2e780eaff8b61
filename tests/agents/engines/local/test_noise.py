from __future__ import annotations

import numpy as np
import pytest
import torch

from turntree.agents.engines.local import noise
from turntree.spec_tree.noise import exponential

SEEDS = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0], np.uint64)[:, None, None]
POSITIONS = np.array([0, 1, 17, 100_000])[None, :, None]
TOKENS = np.arange(20_000)[None, None]


def twin(device: str) -> np.ndarray:
    places = (SEEDS.view(np.int64), POSITIONS, TOKENS)
    return noise.exponential(*(torch.from_numpy(place).to(device) for place in places)).cpu().numpy()


def test_the_cpu_has_the_bits_of_the_reference():
    np.testing.assert_array_equal(twin("cpu"), exponential(SEEDS, POSITIONS, TOKENS))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_has_the_bits_of_the_reference():
    np.testing.assert_array_equal(twin("cuda"), exponential(SEEDS, POSITIONS, TOKENS))
