"""The first compilation is shared with a second process; without it everything is compiled all the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turntree.spec_tree import side_compiler
from turntree.spec_tree.growth import grow
from turntree.spec_tree.side_compiler import SideCompiler
from turntree.spec_tree.warm_up import warm_up

FIRST = """
from turntree.spec_tree.batch import draft, move_on
from turntree.spec_tree.growth import grow
from turntree.spec_tree.warm_up import warm_up
warm_up()
for function in (grow, move_on, draft):
    print(function.stats.cache_hits.total(), function.stats.cache_misses.total())
"""


def stand_in(folder: Path, script: str) -> str:
    """An interpreter that does something else."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_first_process_finds_what_the_second_one_compiled(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", FIRST], env=environment, capture_output=True, text=True, check=True)
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
