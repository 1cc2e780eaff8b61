"""A kernel is compiled again when what it calls has changed in another file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from turntree.spec_tree import compiled

RUN = "import sys; sys.path.insert(0, sys.argv[1]); import outer; print(outer.total(3))"


def run(folder: Path) -> int:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder)], env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_a_change_in_another_file_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(Path(compiled.__file__).read_text())
    (tmp_path / "inner.py").write_text("from own import kernel  # numba\n@kernel\ndef add(x):\n    return x + 1\n")
    (tmp_path / "outer.py").write_text(
        "from inner import add  # numba\nfrom own import kernel\n@kernel\ndef total(x):\n    return add(x)\n"
    )
    assert run(tmp_path) == 4
    kept = {path.name for path in (tmp_path / "cache").rglob("*.nbc")}
    assert run(tmp_path) == 4
    assert {path.name for path in (tmp_path / "cache").rglob("*.nbc")} == kept, "nothing was compiled twice"
    inner = tmp_path / "inner.py"
    inner.write_text(inner.read_text().replace("x + 1", "x + 10"))
    assert run(tmp_path) == 13
