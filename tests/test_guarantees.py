"""Every test in ``tests/guarantees.toml`` exists."""

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TABLE: list[dict[str, Any]] = tomllib.loads((ROOT / "tests" / "guarantees.toml").read_text())["guarantee"]


@cache
def functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def problems(row: dict[str, Any], root: Path = ROOT) -> list[str]:
    """Return what is wrong with a row: a guarantee needs tests and a control that fails when it is broken."""
    found = [f"no {column}" for column in ("tests", "controls") if not row.get(column)]
    for test in (*row.get("tests", ()), *row.get("controls", ())):
        path, _, name = test.partition("::")
        if not (root / path).is_file():
            found.append(f"no file {path}")
        elif name not in functions(root / path):
            found.append(f"no test {name} in {path}")
    return found


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["name"])
def test_each_guarantee_has_its_tests_and_a_control(row: dict[str, Any]) -> None:
    assert problems(row) == []


def test_a_test_that_is_gone_is_missed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    row = {"name": "it", "tests": ["test_it.py::test_it"], "controls": ["test_it.py::test_it"]}
    assert problems(row, tmp_path) == []
    row["tests"] = ["test_it.py::test_other", "gone.py::test_it"]
    assert problems(row, tmp_path) == ["no test test_other in test_it.py", "no file gone.py"]
    assert problems({"name": "it", "tests": ["test_it.py::test_it"]}, tmp_path) == ["no controls"]


def test_guarantees_are_named_once() -> None:
    names = [row["name"] for row in TABLE]
    assert len(names) == len(set(names)) > 30
