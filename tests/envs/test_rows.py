import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from playing import write_rows

from turntree.envs import DataError, MissingExtra
from turntree.envs.rows import FileRows, HubRows, Row, find_rows

ROWS = [{"question": "1+1?", "n": 2}, {"question": "naïve \N{LINE SEPARATOR} line", "n": 3}]


def test_jsonl_rows_keep_their_order_and_know_their_line(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", ROWS)
    rows = list(find_rows(path, split="x").read())
    assert [row.fields for row in rows] == ROWS
    assert [row.where for row in rows] == [f"{path}:1", f"{path}:2"]


def test_blank_lines_count_but_hold_no_row_and_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n\r\n{"n": 2}')
    assert [(row.where, row.fields["n"]) for row in find_rows(path, split="x").read()] == [
        (f"{path}:1", 1),
        (f"{path}:3", 2),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [(b'{"n": ', "bad JSON"), (b"[1]", "got list"), (b'{"n": "\xff"}', "bad JSON"), (b"[" * 100_000, "bad JSON")],
)
def test_a_damaged_line_names_file_and_line(tmp_path: Path, line: bytes, complaint: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\n' + line + b"\n")
    with pytest.raises(DataError) as error:
        list(find_rows(path, split="x").read())
    assert str(error.value).startswith(f"{path}:2: expected one JSON object a line")
    assert complaint in str(error.value)


def test_parquet_rows_equal_jsonl_rows_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs the extra turntree[data]")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    rows = list(find_rows(path, split="x").read())
    assert [row.fields for row in rows] == ROWS
    assert rows[1].where == f"{path}, row 2"
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"a\.parquet: not a readable Parquet file"):
        list(find_rows(path, split="x").read())


def test_a_folder_is_searched_for_the_split(tmp_path: Path) -> None:
    write_rows(tmp_path / "test.jsonl", ROWS)
    found = find_rows(tmp_path, split="test")
    assert isinstance(found, FileRows)
    assert found.path == tmp_path / "test.jsonl"
    with pytest.raises(DataError, match=r"neither train\.jsonl nor train\.parquet"):
        find_rows(tmp_path, split="train")


def test_a_changed_file_is_another_source(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", ROWS)
    before = find_rows(path, split="x")
    assert find_rows(path, split="x") == before
    os.utime(path, (1, 1))
    assert find_rows(path, split="x") != before


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("missing.jsonl", "cannot read missing.jsonl: No such file"),
        ("missing.parquet", "cannot read missing.parquet: No such file"),
        ("no such/folder/x", "which does not exist"),
        ("/no/such/folder", "which does not exist"),
    ],
)
def test_a_missing_file_is_named(data: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        find_rows(data, split="test")


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n\n1\n")
    with pytest.raises(DataError, match=r"expected a \.jsonl or \.parquet file, got .*a\.csv"):
        find_rows(path, split="x")


@pytest.mark.parametrize("name", ["openai/gsm8k", "gsm8k", "HuggingFaceH4/MATH-500"])
def test_other_names_are_data_sets_of_the_hub(name: str) -> None:
    assert find_rows(name, split="test", subset="main") == HubRows(name=name, subset="main", split="test")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The hub's answers, for the name, the subset and the split."""
    datasets = pytest.importorskip("datasets", reason="the hub needs the extra turntree[data]")
    asked = Mock(return_value=datasets.Dataset.from_list(ROWS))
    monkeypatch.setattr(datasets, "load_dataset", asked)
    return asked


def test_hub_rows_come_from_the_datasets_library(hub: Mock) -> None:
    rows = list(find_rows("openai/gsm8k", split="test", subset="main").read())
    hub.assert_called_once_with("openai/gsm8k", "main", split="test")
    assert [row.fields for row in rows] == ROWS
    assert rows[1].where == "openai/gsm8k [test], row 2"


def test_a_data_set_that_cannot_be_loaded_says_how_to_use_a_file(hub: Mock) -> None:
    hub.side_effect = FileNotFoundError("no such data set")
    with pytest.raises(DataError, match=r"'a/b'.*no such data set; to read a file"):
        list(find_rows("a/b", split="test").read())


@pytest.mark.parametrize("library", ["datasets", "pyarrow"])
def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    (tmp_path / "a.parquet").touch()
    source = find_rows("a/b" if library == "datasets" else tmp_path / "a.parquet", split="x")
    for module in [library, *(name for name in sys.modules if name.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf'needs {library}; install it with: pip install "turntree\[data\]"'):
        list(source.read())


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"n": 1}, "here: the field 'question' is missing; the row has: n"),
        ({"question": " "}, "here: the field 'question' must be a text that is not empty, got ' '"),
        ({"question": None}, "must be a text that is not empty, got None"),
        ({"question": 3}, "must be a text that is not empty, got 3"),
    ],
)
def test_a_text_field_is_checked(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(DataError) as error:
        Row(where="here", fields=fields).text("question")
    assert complaint in str(error.value)
