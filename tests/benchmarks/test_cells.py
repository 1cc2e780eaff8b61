import ast
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from benchmark_modules import BENCHMARKS, benchmark_module


@dataclass
class Row:
    batch: int
    epoch: int
    value: str


@pytest.fixture
def cells(tmp_path: Path) -> Callable[..., Any]:
    def make(machine: str = "here") -> Any:
        module = benchmark_module("common.cells")
        return module.Cells(tmp_path / "table.json", machine=machine, how="alone")

    return make


def held(folder: Path) -> list[tuple[int, int, str]]:
    return [tuple(row.values()) for row in json.loads((folder / "table.json").read_text())["rows"]]


def test_rows_of_the_same_batch_size_are_replaced_and_others_stay(cells, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["first.py"])
    cells().put([Row(4, 1, "a"), Row(4, 2, "b"), Row(1, 1, "c")])
    monkeypatch.setattr("sys.argv", ["second.py", "--batches", "4"])
    cells().put([Row(4, 1, "d")])
    assert held(tmp_path) == [(1, 1, "c"), (4, 1, "d")]
    table = json.loads((tmp_path / "table.json").read_text())
    assert table["commands"] == ["python first.py", "python second.py --batches 4"]
    assert (table["machine"], table["how"]) == ("here", "alone")
    assert [file.name for file in tmp_path.iterdir()] == ["table.json"]


def test_without_a_file_nothing_is_kept_and_rows_of_two_machines_do_not_share_one(tmp_path, cells):
    benchmark_module("common.cells").Cells(None, machine="here", how="").put([Row(1, 1, "a")])
    assert not list(tmp_path.iterdir())
    cells().put([Row(1, 1, "a")])
    with pytest.raises(ValueError, match="holds rows of 'here', this is 'there'"):
        cells(machine="there")
    assert held(tmp_path) == [(1, 1, "a")]


def test_scripts_import_their_parts_by_the_room_that_they_lie_in() -> None:
    scripts = {path.stem for path in BENCHMARKS.glob("*.py")}
    parts, found = {path.stem for path in BENCHMARKS.glob("*/*.py")} - scripts, set()
    for path in BENCHMARKS.rglob("*.py"):
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        modules = {node.module for node in tree if isinstance(node, ast.ImportFrom) and node.module}
        assert not modules & parts, f"{path.name} imports a part without its room"
        found |= {module.rpartition(".")[2] for module in modules}
    assert len(found & parts) > 15, "the control: parts are imported"
