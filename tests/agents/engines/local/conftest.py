from collections.abc import Iterator

import numpy as np
import pytest
import torch
from cores import CONFIG, tiny_llama

from turntree.agents.engines.local import LocalEngine


@pytest.fixture
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 32, size=5 + 9 * (i % 4)).tolist() for i in range(10)]


@pytest.fixture
def model() -> torch.nn.Module:
    return tiny_llama()


@pytest.fixture
def engine(model: torch.nn.Module) -> Iterator[LocalEngine]:
    with LocalEngine(model, config=CONFIG) as engine:
        yield engine
