from __future__ import annotations

from pathlib import Path

import pytest
from gpu_stages import check_stages


@pytest.mark.sglang
@pytest.mark.once
@pytest.mark.release
@pytest.mark.slow
def test_the_first_hours_stages_of_sglang_run(tmp_path: Path) -> None:
    check_stages("sglang", tmp_path)
