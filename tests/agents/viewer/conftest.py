from pathlib import Path

import pytest
from viewed_run import write_run

from turntree.agents.loop.renderer import Renderer
from turntree.agents.viewer.source import Source


@pytest.fixture
async def run(renderer: Renderer, tmp_path: Path) -> Path:
    return await write_run(tmp_path / "run", renderer)


@pytest.fixture
def source(run: Path) -> Source:
    return Source.open(run)
