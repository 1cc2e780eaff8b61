from collections.abc import Iterator
from pathlib import Path
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


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def recording(engine: SpokenEngine, renderer: Renderer, run_folder: Path) -> Iterator[Served]:
    with gateway_at(engine, renderer, record=run_folder, max_context=1024) as served:
        yield served
