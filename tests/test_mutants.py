"""The planted faults apply, and their runner distinguishes noticed from unnoticed faults."""

import re
import subprocess
from pathlib import Path

import pytest
from example_files import module_at
from tables import table

ROOT = Path(__file__).resolve().parents[1]
LEAST = 69
FAULT = table(__file__, "fault")


@pytest.fixture(scope="module")
def mutants():
    return module_at(ROOT / "scripts/mutants.py", "mutants")


def test_every_fault_fits_its_file_and_names_tests_that_exist(mutants):
    table = mutants.read_table(ROOT / "tests/mutants.toml")
    assert len({mutant.name for mutant in table}) == len(table) >= LEAST
    for mutant in table:
        mutant.applied((ROOT / mutant.file).read_text())
        text = "".join((ROOT / test.split("::")[0]).read_text() for test in mutant.tests)
        for word in {*re.findall(r"\w+", mutant.select)} - {"and", "or", "not"}:
            assert word in text, f"{mutant.name!r} selects {word!r}, which none of its tests has"
        assert "def test_" in text
        assert any(is_run(mutants, test) for test in mutant.tests), f"{mutant.name!r}: none of its tests is run"
    assert not is_run(mutants, "tests/agents/engines/vllm/test_graphs.py"), "the control"


def is_run(mutants, test):
    marks = re.search(r"^pytestmark = .*", (ROOT / test.split("::")[0]).read_text(), re.MULTILINE)
    return not marks or not {*re.findall(r"mark\.(\w+)", marks[0])} & {*re.findall(r"not (\w+)", mutants.MARKS)}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    # A sum whose test does not check the empty case.
    root = tmp_path_factory.mktemp("tree")
    (root / "rewards").mkdir()
    (root / "tests").mkdir()
    (root / "rewards/total.py").write_text("def total(xs):\n    return sum(xs) if xs else 0\n")
    (root / "tests/test_it.py").write_text(
        "from turntree.rewards.total import total\n\n\ndef test_it():\n    assert total([1, 2]) == 3\n"
    )
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


def judged():
    # Faults of one run have the same status, and may all end or all not.
    found = {}
    for *fault, status, said in table(__file__, "faults"):
        found.setdefault((status, 1 if "while" in fault[1] else 300), []).append((*fault, said))
    return [(*kind, faults) for kind, faults in found.items()]


@pytest.mark.parametrize(("status", "seconds", "faults"), judged())
def test_a_fault_is_noticed_or_survives_or_is_none(mutants, tree, capsys, status, seconds, faults):
    rows = (FAULT.format(old=old, new=new, hangs=str(hangs).lower()) for old, new, hangs, _ in faults)
    (tree / "tests/mutants.toml").write_text("".join(rows))
    before = (tree / "rewards/total.py").read_text()
    assert mutants.main(["--tree", str(tree), "--seconds", str(seconds)]) == status
    told = "".join(capsys.readouterr())
    assert all(said in told for *_, said in faults)
    assert f"{len(faults) if status == 0 else 0} of {len(faults)} faults were noticed" in told
    assert (tree / "rewards/total.py").read_text() == before


def test_tests_that_fail_without_a_fault_judge_none(mutants, tree, capsys):
    (tree / "tests/test_broken.py").write_text("def test_it():\n    assert False\n")
    fault = FAULT.format(old="sum(xs)", new="max(xs)", hangs="false").replace("test_it.py", "test_broken.py")
    (tree / "tests/mutants.toml").write_text(fault)
    assert mutants.main(["--tree", str(tree)]) == 2
    assert "without a fault, tests/test_broken.py ends with 1" in capsys.readouterr().err
