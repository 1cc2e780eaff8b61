import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from playing import published, write_rows
from tables import table

from turntree.envs import DataError, MissingExtra, make
from turntree.envs.data.rows import FileRows, HubRows, Row, find_rows
from turntree.envs.math.gsm8k import GSM8K

ROWS = [{"question": "1+1?", "n": 2}, {"question": "naïve \N{LINE SEPARATOR} line", "n": 3}]


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


def test_a_folder_is_searched_for_the_split_and_a_changed_file_is_another_source(tmp_path: Path) -> None:
    write_rows(tmp_path / "test.jsonl", ROWS)
    found = find_rows(tmp_path, split="test")
    assert isinstance(found, FileRows)
    assert found.path == tmp_path / "test.jsonl"
    with pytest.raises(DataError, match=r"neither train\.jsonl nor train\.parquet"):
        find_rows(tmp_path, split="train")
    path = write_rows(tmp_path / "a.jsonl", ROWS)
    before = find_rows(path, split="x")
    assert find_rows(path, split="x") == before
    os.utime(path, (1, 1))
    assert find_rows(path, split="x") != before
    path = tmp_path / "a.csv"
    path.write_text("n\n1\n")
    with pytest.raises(DataError, match=r"expected a \.jsonl or \.parquet file, got .*a\.csv"):
        find_rows(path, split="x")


@pytest.mark.parametrize(("data", "complaint"), table(__file__, "missing_files"))
def test_a_missing_file_is_named(data: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        find_rows(data, split="test")


@pytest.mark.parametrize("name", ["openai/gsm8k", "gsm8k", "HuggingFaceH4/MATH-500"])
def test_other_names_are_data_sets_of_the_hub(name: str) -> None:
    assert find_rows(name, split="test", subset="main") == HubRows(name=name, subset="main", split="test")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Mock:
    datasets = pytest.importorskip("datasets", reason="the hub needs the extra turntree[data]")
    asked = Mock(return_value=datasets.Dataset.from_list(ROWS))
    monkeypatch.setattr(datasets, "load_dataset", asked)
    monkeypatch.setattr("turntree.envs.data.rows.hub_asked_once", nullcontext)
    return asked


def test_hub_rows_come_from_the_datasets_library_and_a_set_that_does_not_says_how_to_use_a_file(hub: Mock) -> None:
    rows = list(find_rows("openai/gsm8k", split="test", subset="main").read())
    hub.assert_called_once_with("openai/gsm8k", "main", split="test")
    assert [row.fields for row in rows] == ROWS
    assert rows[1].where == "openai/gsm8k [test], row 2"
    hub.side_effect = FileNotFoundError("no such data set")
    with pytest.raises(DataError, match=r"'a/b'.*no such data set; to read a file"):
        list(find_rows("a/b", split="test").read())


@pytest.mark.parametrize("library", ["datasets", "pyarrow"])
def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    (tmp_path / "a.parquet").touch()
    source = find_rows("a/b" if library == "datasets" else tmp_path / "a.parquet", split="x")
    for module in [library, *(name for name in sys.modules if name.startswith(f"{library}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf'needs {library}; .*: {sys.executable} -m pip install .*\[data\]"'):
        list(source.read())


@pytest.mark.parametrize(("fields", "complaint"), [*table(__file__, "no_texts"), ({"question": None}, "got None")])
def test_a_text_field_is_checked(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(DataError) as error:
        Row(where="here", fields=fields).text("question")
    assert complaint in str(error.value)


PROBLEMS = [
    {"question": "Two and two?", "answer": "It is <<2+2=4>>4.\n#### 4"},
    {"question": "A thousand and 200?", "answer": "#### 1,200", "id": "mine"},
    {"question": "Half?", "answer": "0.5"},
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "test.jsonl", PROBLEMS)


def test_rows_become_tasks(data: Path) -> None:
    env = GSM8K(data=data)
    assert env.num_tasks == 3
    tasks = [env.task(i) for i in range(3)]
    assert [task.id for task in tasks] == ["gsm8k/test/0", "mine", "gsm8k/test/2"]
    assert [task.answer for task in tasks] == ["4", "1,200", "0.5"]
    assert tasks[0].prompt == "Two and two?"
    assert {task.data_source for task in tasks} == {"gsm8k"}


@pytest.mark.parametrize(("row", "complaint"), table(__file__, "malformed_gsm8k"))
def test_a_malformed_row_names_file_and_line(tmp_path: Path, row: dict[str, object], complaint: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [*PROBLEMS, row])
    with pytest.raises(DataError) as error:
        make("turntree/GSM8K-v0", data=path)
    assert str(error.value).startswith(f"{path}:4: ")
    assert complaint in str(error.value)


def test_rows_that_repeat_an_evaluation_set_are_left_out_on_request(tmp_path: Path) -> None:
    repeated = {"question": "?", "answer": "4", "overlaps_eval": ["math500"]}
    data = write_rows(tmp_path / "rows.jsonl", [repeated, {"question": "!", "answer": "5", "overlaps_eval": []}])
    env = GSM8K(data=data, without=["math500"])
    assert [env.task(i).id for i in range(env.num_tasks or 0)] == ["gsm8k/test/1"]


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'there are no rows in .*a\.jsonl; expected .*: \{"question": '):
        GSM8K(data=write_rows(tmp_path / "a.jsonl", []))


def test_a_file_is_read_once_until_it_changes(data: Path) -> None:
    first = GSM8K(data=data)
    assert GSM8K(data=data).task(0) is first.task(0)
    write_rows(data, PROBLEMS[:1])
    assert GSM8K(data=data).num_tasks == 1


def test_snapshots_leave_the_problems_out(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"question": "x" * 1000, "answer": str(i)} for i in range(100)]
    env = GSM8K(data=write_rows(tmp_path / "a.jsonl", rows))
    env.reset(options={"index": 3})
    state = env.snapshot()
    assert len(state) < 10_000
    env.reset(options={"index": 4})
    env.restore(state)
    assert env.current_task.answer == "3"


@pytest.mark.parametrize(("split", "count"), [("test", 1319), ("train", 7473)])
def test_the_published_problems_can_be_read_and_their_answers_are_right(split: str, count: int) -> None:
    env = GSM8K(data=published("gsm8k"), split=split)
    assert env.num_tasks == count
    for index in range(0, count, 50):
        env.reset(options={"index": index})
        assert env.step(f"#### {int(env.current_task.answer):,}")[1] == 1.0


def test_gsm8k_is_found_in_the_folder_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data" / "gsm8k"
    folder.mkdir(parents=True)
    write_rows(folder / "test.jsonl", [{"question": "?", "answer": "4"}])
    monkeypatch.setenv("TURNTREE_DATA", str(tmp_path))
    assert make("turntree/GSM8K-v0").unwrapped.num_tasks == 1
