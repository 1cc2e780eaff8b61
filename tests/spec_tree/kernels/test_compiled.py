import os
import subprocess
import sys
import time
from pathlib import Path

import interpreter
import pytest
from tables import table

from turntree import spec_tree
from turntree.spec_tree.kernels import compiled, side_compiler
from turntree.spec_tree.kernels.growth import grow
from turntree.spec_tree.kernels.side_compiler import SideCompiler
from turntree.spec_tree.store.warm_up import warm_up

RUN = "import sys; sys.path.insert(0, sys.argv[1]); import outer; print(outer.total(3))"


def python(code: str, *arguments: str, cache: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run code in another process, which keeps what it compiles in ``cache``."""
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


def stand_in(folder: Path, script: str) -> str:
    """An interpreter that does something else."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.release  # compiles all kernels twice
def test_the_first_process_finds_what_the_second_one_compiled(tmp_path: Path) -> None:
    done = python(table(__file__, "first_use"), cache=tmp_path)
    of_grow, of_move_on, of_draft = (tuple(map(int, line.split())) for line in done.stdout.splitlines())
    assert (of_grow, of_move_on, of_draft) == ((1, 0), (1, 0), (0, 1))
    kept = [path.name.split("-")[0] for path in tmp_path.rglob("*.nbc")]
    assert len(kept) == len(set(kept)), "a kernel was compiled for arguments that nobody passes"


def test_no_process_is_started_where_everything_has_been_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up()
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, f"touch {tmp_path}/ran"))
    with SideCompiler() as other:
        assert not other.works()
        other.wait_for(grow)
    assert not (tmp_path / "ran").exists()


def test_the_second_process_compiles_for_as_many_arguments_as_calls_have() -> None:
    """Else it ends with an error that nobody sees, and the first compilation takes twice as long."""
    for function, types in side_compiler.signatures().items():
        assert len(types) == function.py_func.__code__.co_argcount, function.__name__


def test_a_process_that_fails_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_compiler, "is_kept", lambda function: False)
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, f"touch {tmp_path}/ran; exit 3"))
    with SideCompiler() as other:
        other.wait_for(grow)
        assert not other.works()
    assert (tmp_path / "ran").exists()


def test_a_process_that_stalls_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_compiler, "is_kept", lambda function: False)
    monkeypatch.setattr(side_compiler, "PATIENCE", 0.1)
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600"))
    with SideCompiler() as other:
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        other.wait_for(grow)
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_without_an_interpreter_to_start_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_compiler, "is_kept", lambda function: False)
    monkeypatch.setattr(sys, "executable", "")
    with SideCompiler() as other:
        other.wait_for(grow)
        assert not other.works()


LIGHT = "from turntree.spec_tree import DialogueState, DraftBatch, ForestConfig, ForestStats, TreeNode; "
PROTOCOL = "import turntree.agents.engines.protocol; "
WITHOUT_NUMBA = "import sys; sys.modules['numba'] = None; "


def test_the_data_around_the_store_and_the_engines_protocol_load_without_numba():
    shown = python(WITHOUT_NUMBA + LIGHT + PROTOCOL + "print(DialogueState.from_tokens([1]).ladder()[0] > 0)")
    assert shown.stdout.strip() == "True", shown.stderr


def test_without_numba_the_store_names_the_extra_to_install():
    shown = python(WITHOUT_NUMBA + "from turntree.spec_tree import SpecForest")
    assert f'ImportError: SpecForest needs numba: {sys.executable} -m pip install "turntree[tree]"' in shown.stderr


def test_a_name_that_is_not_there_is_an_attribute_error():
    assert not hasattr(spec_tree, "SpecWood")
