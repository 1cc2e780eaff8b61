"""The table of faults can be put in, and its runner tells those that tests notice from those that they do not."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEAST = 66
FAULT = """
[[mutant]]
name = "a fault"
file = "rewards/total.py"
old = "{old}"
new = "{new}"
tests = ["tests/test_it.py"]
"""


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts/mutants.py")
    module = sys.modules["mutants"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_fault_fits_its_file_and_names_tests_that_exist(mutants):
    table = mutants.read_table(ROOT / "tests/mutants.toml")
    assert len({mutant.name for mutant in table}) == len(table) >= LEAST
    for mutant in table:
        mutant.applied((ROOT / mutant.file).read_text())
        assert mutant.tests
        for test in mutant.tests:
            assert (ROOT / test.split("::")[0]).is_file(), f"{mutant.name!r}: no file of {test}"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A tree with a sum whose test does not look at what it says of nothing."""
    root = tmp_path_factory.mktemp("tree")
    (root / "rewards").mkdir()
    (root / "tests").mkdir()
    (root / "rewards/total.py").write_text("def total(xs):\n    return sum(xs) if xs else 0\n")
    (root / "tests/test_it.py").write_text(
        "from turntree.rewards.total import total\n\n\ndef test_it():\n    assert total([1, 2]) == 3\n"
    )
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


@pytest.mark.parametrize(
    ("old", "new", "status", "said"),
    [
        ("sum(xs)", "max(xs)", 0, "tests/test_it.py::test_it"),
        ("else 0", "else 1", 1, "SURVIVED"),
        ("xs", "ys", 2, "not 3 times"),
        ("def total(xs):", "def total(xs)", 2, "status 70"),
        ("total(xs)", "all(xs)", 2, "status 2"),
    ],
)
def test_a_fault_is_noticed_or_survives_or_is_none(mutants, tree, capsys, old, new, status, said):
    (tree / "tests/mutants.toml").write_text(FAULT.format(old=old, new=new))
    before = (tree / "rewards/total.py").read_text()
    assert mutants.main(["--tree", str(tree)]) == status
    assert said in "".join(capsys.readouterr())
    assert (tree / "rewards/total.py").read_text() == before
