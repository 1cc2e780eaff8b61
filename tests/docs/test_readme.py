"""README's commands run as they stand, with the model that one of them makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machine_speed import patience

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """The line that makes the model, and those of the section about the command line, without their comments."""
    (model,) = re.findall(r"`(turntree model [^`]+)`", README)
    section = README.partition("## From the command line\n")[2].partition("\n## ")[0].replace("\\\n", "")
    return [model, *(line.split("#")[0].strip() for line in section.splitlines() if line.startswith("turntree "))]


def test_there_are_commands_of_every_kind() -> None:
    verbs = {line.split()[1] for line in commands()}
    assert {"model", "new", "check", "eval", "bench", "train", "view", "serve"} <= verbs


@pytest.mark.release
def test_every_command_runs_word_for_word(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n([^`]*class Doubling.*?)```", README, re.DOTALL)
    (tmp_path / "doubling.py").write_text(block, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    where = {"cwd": tmp_path, "env": {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"}, "text": True}
    for line in commands():
        if line.startswith("turntree serve "):
            with subprocess.Popen(line.split(), stdout=subprocess.PIPE, **where) as server:
                assert "http" in (server.stdout.readline() if server.stdout else "")
                server.terminate()
        else:
            done = subprocess.run(line, shell=True, capture_output=True, timeout=patience(900), check=False, **where)
            assert done.returncode == 0, f"{line}\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
