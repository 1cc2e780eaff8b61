from __future__ import annotations

from pathlib import Path

import pytest
from gpu_stages import check_stages


@pytest.mark.vllm
@pytest.mark.once
@pytest.mark.release
@pytest.mark.slow
def test_the_first_hours_stages_of_vllm_run(tmp_path: Path) -> None:
    check_stages("vllm", tmp_path)
