"""The suite stays within its budget: tests/cpu_seconds.toml, which `make test-times` writes."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cpu_seconds
import pytest

ROOT = Path(__file__).parents[1]


def faults(taken: Mapping[str, Any], files: set[str]) -> list[str]:
    """What is wrong with a table of seconds, for a suite of these files."""
    seconds: dict[str, int] = taken["seconds"]
    found = [f"{name}: not in tests/cpu_seconds.toml, take its CPU seconds" for name in sorted(files - seconds.keys())]
    found += [f"{name}: is gone, its row goes too" for name in sorted(seconds.keys() - files - {"imports"})]
    if (total := sum(seconds.values())) > 60 * taken["budget_minutes"]:
        found.append(f"{total} s are above the budget of {taken['budget_minutes']} minutes: say what goes")
    return found


def test_every_file_is_in_the_budget_and_the_sum_is_below_it() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert not faults(tomllib.loads((ROOT / "tests" / "cpu_seconds.toml").read_text()), files)


def test_a_new_file_one_that_is_gone_and_a_sum_above_the_budget_are_named() -> None:
    taken = {"budget_minutes": 1, "seconds": {"imports": 9, "old.py": 20, "gone.py": 32}}
    shown = faults(taken, {"old.py", "new.py"})
    assert [line.partition(":")[0] for line in shown] == ["new.py", "gone.py", "61 s are above the budget of 1 minutes"]


def test_seconds_of_what_inherited_the_folder_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cpu_seconds.FOLDER, "of-this-test")
    cpu_seconds.is_ours.cache_clear()
    account = cpu_seconds.Account()
    account.look("a.py", at_once=True)
    burn = "import time\nwhile time.process_time() < 0.4: pass\n"
    subprocess.run([sys.executable, "-c", burn], check=True)
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn + 'input()'!r}])"
    read, write = os.pipe()
    subprocess.run([sys.executable, "-c", orphan], check=True, stdin=read)
    while cpu_seconds.seconds_of(lambda pid: pid != os.getpid() and cpu_seconds.is_ours(pid)) < 0.3:
        os.sched_yield()
    account.look("b.py", at_once=True)
    os.write(write, b"\n")
    os.close(read)
    os.close(write)
    assert account.files["a.py"] >= 0.7
    account.look("b.py", at_once=True)
    assert account.files["b.py"] < 0.4, "the control: what another file's processes took is not its own"
    cpu_seconds.is_ours.cache_clear()
