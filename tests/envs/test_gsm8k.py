import json
from pathlib import Path

import pytest
from playing import published, write_rows

from turntree.envs import DataError, make
from turntree.envs.gsm8k import GSM8K

ROWS = [
    {"question": "Two and two?", "answer": "It is <<2+2=4>>4.\n#### 4"},
    {"question": "A thousand and 200?", "answer": "#### 1,200", "id": "mine"},
    {"question": "Half?", "answer": "0.5"},
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "test.jsonl", ROWS)


def test_rows_become_tasks(data: Path) -> None:
    env = GSM8K(data=data)
    assert env.num_tasks == 3
    tasks = [env.task(i) for i in range(3)]
    assert [task.id for task in tasks] == ["gsm8k/test/0", "mine", "gsm8k/test/2"]
    assert [task.answer for task in tasks] == ["4", "1,200", "0.5"]
    assert tasks[0].prompt == "Two and two?"
    assert {task.data_source for task in tasks} == {"gsm8k"}


def test_an_episode_with_the_calculator(data: Path) -> None:
    env = GSM8K(data=data, tool_format="compact")
    _, info = env.reset(options={"index": 1})
    assert [message["role"] for message in info["messages"]] == ["system", "user"]
    assert "calculator(" in info["messages"][0]["content"]
    assert "1,200" not in json.dumps(info)
    assert env.step("calculator((500+100)*2)")[0] == "1200"
    _, reward, terminated, _, info = env.step("A thousand and 200 is:\n#### $1200.00")
    assert (reward, terminated, info["rewards"]) == (1.0, True, {"correct": 1.0})


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"question": "?"}, "the field 'answer' is missing; the row has: question"),
        ({"answer": "#### 4"}, "the field 'question' is missing"),
        ({"question": "", "answer": "#### 4"}, "the field 'question' must be a text that is not empty"),
        ({"question": "?", "answer": None}, "the field 'answer' must be a text"),
        ({"question": "?", "answer": "It is four."}, "must end with '#### NUMBER' or be a number, got 'It is four.'"),
        ({"question": "?", "answer": "#### four"}, "must end with '#### NUMBER'"),
        ({"question": "?", "answer": "#### "}, "must end with '#### NUMBER'"),
        ({"question": "?", "answer": "4", "id": 7}, "the field 'id' must be a text"),
    ],
)
def test_a_malformed_row_names_file_and_line(tmp_path: Path, row: dict[str, object], complaint: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [*ROWS, row])
    with pytest.raises(DataError) as error:
        make("turntree/GSM8K-v0", data=path)
    assert str(error.value).startswith(f"{path}:4: ")
    assert complaint in str(error.value)


def test_rows_that_repeat_an_evaluation_set_are_left_out_on_request(tmp_path: Path) -> None:
    repeated = {"question": "?", "answer": "4", "overlaps_eval": ["math500"]}
    data = write_rows(tmp_path / "rows.jsonl", [repeated, {"question": "!", "answer": "5", "overlaps_eval": []}])
    env = GSM8K(data=data, without=["math500"])
    assert [env.task(i).id for i in range(env.num_tasks or 0)] == ["gsm8k/test/1"]
    assert GSM8K(data=data).num_tasks == 2


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected rows with question and answer, got none"):
        GSM8K(data=write_rows(tmp_path / "a.jsonl", []))


def test_a_file_is_read_once_until_it_changes(data: Path) -> None:
    first = GSM8K(data=data)
    assert GSM8K(data=data).task(0) is first.task(0)
    write_rows(data, ROWS[:1])
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


def test_a_data_folder_is_found_by_the_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data" / "gsm8k"
    folder.mkdir(parents=True)
    write_rows(folder / "test.jsonl", ROWS)
    monkeypatch.setenv("TURNTREE_DATA", str(tmp_path))
    assert make("turntree/GSM8K-v0").unwrapped.num_tasks == 3
