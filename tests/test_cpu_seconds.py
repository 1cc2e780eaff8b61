"""The suite stays within its CPU budget: tests/cpu_seconds.toml, which `make test-times` writes."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from cpu_account import Account  # noqa: E402


def faults(taken: Mapping[str, Any], files: set[str]) -> list[str]:
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


BURN = "import time\nwhile time.process_time() < 0.4: pass\n"
#: a program that ends before the program that it started
LEAVE = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURN + 'input()'!r}])"


def test_seconds_of_all_that_inherited_a_variable_stay_counted() -> None:
    account, other = Account("COUNTED=here"), Account("COUNTED=elsewhere")
    environment = {**os.environ, "COUNTED": "here"}
    running = subprocess.Popen([sys.executable, "-c", LEAVE], env=environment, stdin=subprocess.PIPE)
    running.wait()
    while account.seconds.total() < 0.3:  # of a process that nobody will wait for
        account.look("orphan.py")
        other.look("orphan.py")
    orphans = account.seconds.total()
    running.communicate(b"\n")
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}]); input()"
    with subprocess.Popen([sys.executable, "-c", parent], env=environment, stdin=subprocess.PIPE) as running:
        while account.seconds["child.py"] < 0.3:  # of one that its parent waits for: once, not twice
            account.look("child.py")
        running.communicate(b"\n")
    account.look("end.py")
    assert account.seconds["orphan.py"] >= orphans
    assert account.seconds["end.py"] < 0.2
    assert other.seconds.total() == 0, "the control: they inherited another value"
