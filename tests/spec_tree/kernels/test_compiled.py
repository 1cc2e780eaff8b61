import os
import subprocess
import sys
from pathlib import Path

import interpreter

from turntree import spec_tree
from turntree.spec_tree.kernels import compiled

RUN = "import sys; sys.path.insert(0, sys.argv[1]); import outer; print(outer.total(3))"


def python(code: str, *arguments: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)} if cache else None
    return interpreter.python("-c", code, *arguments, env=environment)


def run(folder: Path) -> int:
    return int(python(RUN, str(folder), cache=folder / "cache").stdout)


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


WITHOUT_NUMBA = "import sys; sys.modules['numba'] = None; "


def test_without_numba_the_store_names_the_package_to_install_and_the_data_around_it_load():
    shown = python(WITHOUT_NUMBA + "from turntree.spec_tree import SpecForest")
    assert f"ImportError: SpecForest needs numba: {sys.executable} -m pip install numba" in shown.stderr
    light = "from turntree.spec_tree import DialogueState, DraftBatch, ForestConfig, ForestStats, TreeNode; "
    light += "import turntree.agents.engines.protocol; print(DialogueState.from_tokens([1]).backoff_states()[0] > 0)"
    shown = python(WITHOUT_NUMBA + light)
    assert shown.stdout.strip() == "True", shown.stderr
    assert not hasattr(spec_tree, "SpecWood")
