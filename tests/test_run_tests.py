"""scripts/run_tests.py (`make test`) runs every part to its end and sums up the results."""

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tables import table

SCRIPT = Path(__file__).parents[1] / "scripts" / "run_tests.py"
sys.path.insert(0, str(SCRIPT.parent))

import run_tests  # noqa: E402


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    # Three parts, of which the first fails in two tests and the second before pytest starts.
    root = tmp_path_factory.mktemp("checkout")
    (root / "scripts").mkdir()
    (root / "scripts" / "venv.sh").write_text('#!/bin/sh\n[ "$2" != vllm-0.28 ]\n')
    (root / "scripts" / "venv.sh").chmod(0o755)
    (root / "Makefile").write_text(table(__file__, "parts").replace("PY", f"{sys.executable} -m pytest -ra"))
    (root / "test_bad.py").write_text(table(__file__, "bad_part"))
    (root / "test_good.py").write_text(table(__file__, "good_part"))
    words = ["test-vllm", "broken", "good", "none", "--", "VLLM=vllm-0.28", "KIND=not slow"]
    bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = [sys.executable, SCRIPT, *words]
    done = subprocess.run(words, cwd=root, env=bare, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout


def test_a_part_that_fails_stops_no_other_and_is_not_forgotten(shown: tuple[int, str]) -> None:
    status, out = shown
    assert status == 1
    rows = {row.split()[0]: row.split()[1:4] for row in out.partition("\npart ")[2].splitlines()[1:]}
    assert rows["test-vllm"] == ["1", "2", "1"]
    assert rows["broken"] == ["0", "yes", "0"]
    assert rows["good"] == ["2", "0", "1"]
    assert rows["none"] == ["0", "0", "0"], "the control: a part for which no test was chosen has not failed"


def test_a_failure_is_shown_with_the_command_that_runs_it_alone_and_skips_by_reason(shown: tuple[int, str]) -> None:
    lines = [line.strip() for line in shown[1].splitlines()]
    at = lines.index("test_bad.py::test_sum[1 2]")
    assert lines[at + 1 : at + 3] == [
        "assert (1 + 2) == 4",
        "make test-vllm TESTS=test_bad.py::test_sum VLLM=vllm-0.28 'KIND=not slow'",
    ]
    at = lines.index("test_bad.py::test_late")
    assert lines[at + 1] == "RuntimeError: no fixture"
    assert "nothing to install from" in lines[lines.index("broken FAILED") :], "of a part without tests its last lines"
    out = shown[1]
    assert "     2  no GPU here\n" in out
    assert "to be installed once: vllm-0.28, 0.9 GB, 1 minute" in out
    assert "=== 2 passed, 1 skipped in " in out


def test_doctests() -> None:
    assert doctest.testmod(run_tests).failed == 0
