from collections.abc import Iterator
from typing import Any

import pytest
from gateways import Served, SpokenEngine, gateway_at

from turntree.agents.loop.renderer import Renderer


@pytest.fixture
def engine(chatml: Any) -> SpokenEngine:
    return SpokenEngine(chatml)


@pytest.fixture
def served(engine: SpokenEngine, renderer: Renderer) -> Iterator[Served]:
    with gateway_at(engine, renderer) as served:
        yield served
