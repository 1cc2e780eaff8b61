"""The programs of Repair: the right ones pass, and every fault fails a test that is seen and a call that is not."""

import io
import sys
import unittest
from collections.abc import Mapping

import pytest

from turntree.envs import DataError, make
from turntree.envs.repair.calls import outcomes
from turntree.envs.repair.programs import Program, expected, find_program, load, programs

EVERY = (*programs("train"), *programs("test"))


def passes(files: Mapping[str, str], name: str) -> bool:
    """Whether the tests that the policy sees pass."""
    tests = unittest.defaultTestLoader.loadTestsFromModule(load(files, f"test_{name}"))
    result = unittest.TextTestRunner(stream=io.StringIO()).run(tests)
    assert result.testsRun >= 4
    return result.wasSuccessful()


@pytest.mark.parametrize("program", EVERY, ids=lambda program: program.name)
def test_the_right_program_passes_and_each_fault_is_seen_and_judged(program: Program) -> None:
    right = expected(program.name)
    assert "" not in right
    assert passes({**program.modules, f"test_{program.name}.py": program.tests}, program.name)
    for number, fault in enumerate(program.faults):
        files = program.files(number)
        assert sum(text.count(fault.right) for text in program.modules.values()) == 1, fault
        assert files[fault.path].count(fault.wrong) == 1, fault
        assert not passes(files, program.name), fault
        assert outcomes(program.calls, load(files, program.name)) != list(right), fault


def test_there_are_enough_of_them_and_those_of_the_test_are_others() -> None:
    train, test = make("turntree/Repair-v0"), make("turntree/Repair-v0", split="test")
    assert train.num_tasks is not None
    assert test.num_tasks is not None
    assert train.num_tasks >= 50
    assert test.num_tasks >= 10
    assert len({program.name for program in EVERY}) == len(EVERY) >= 12
    assert len({train.task(index).metadata["program"] for index in range(10)}) == 10


def test_an_outcome_is_a_value_or_an_exceptions_name_and_our_source_leaves_nothing_to_import() -> None:
    load(find_program("formulas").modules, "formulas")
    assert not {"formulas", "scan"} & set(sys.modules)
    module = type("Module", (), {"add": lambda a, b: a + b, "odd": lambda: object()})
    calls = [["add", 1, 2], ["add", [1], [2]], ["add", 1, "x"], ["missing"], ["odd"]]
    given = ['{"value": 3}', '{"value": [1, 2]}', '{"raises": "TypeError"}', '{"raises": "AttributeError"}', ""]
    assert outcomes(calls, module) == given
    with pytest.raises(DataError, match=r"one of the programs intervals, .* got 'chess'"):
        find_program("chess")
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'dev'"):
        make("turntree/Repair-v0", split="dev")
