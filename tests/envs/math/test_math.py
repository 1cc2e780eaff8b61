import functools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playing import SHARED, call, published, use, write_rows
from tables import table

from turntree.envs import DataError, Env, make, require_conformance
from turntree.envs.errors import UngradedAnswer
from turntree.envs.math.env import Math
from turntree.envs.math.sets import MATH_SETS, MathSet, find_set
from turntree.envs.math.tasks import read_tasks
from turntree.rewards import answer_format_for

PUBLISHED = table(__file__, "published")
RIGHT = {"gsm8k": "4.0", "math": "0.5", "math500": r"(3,\pi/2)", "olympiadbench": "-1, 1", "aime": "73", "amc": "142"}
RIGHT |= {"minerva": "1.6", "mmlu-stem": "C", "dapo": "34"}
sets = pytest.mark.parametrize("entry", MATH_SETS, ids=lambda entry: entry.name)


@pytest.fixture
def math(tmp_path: Path) -> Any:
    """Makes an environment with one published row of a set."""

    def build(name: str, **arguments: Any) -> Env:
        path = write_rows(tmp_path / "rows.jsonl", [arguments.pop("row", PUBLISHED[name])])
        return make(find_set(name).env_id, data=path, **arguments)

    return build


@sets
def test_a_published_row_is_read_and_its_right_answer_wins(entry: MathSet, math: Any) -> None:
    env = math(entry.name)
    _, info = env.reset(seed=0, options={"index": 0})
    assert r"\boxed{}" in info["messages"][0]["content"]
    assert env.current_task.data_source == entry.answer_format
    assert answer_format_for(env.current_task.data_source)
    _, reward, terminated, truncated, info = env.step(rf"So it is \boxed{{{RIGHT[entry.name]}}}.")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["rewards"] == {"correct": 1.0, "attempts": 1.0}


@sets
def test_a_wrong_answer_may_be_mended_where_attempts_are_left(entry: MathSet, math: Any) -> None:
    env = math(entry.name, attempts=3, discount=0.5)
    env.reset(seed=0)
    said, reward, terminated, *_ = env.step(r"\boxed{999}")
    assert (reward, terminated) == (0.0, False)
    assert "not right" in said
    assert "attempts left: 2" in said
    assert RIGHT[entry.name] not in said.replace("left: 2", "")
    said, *_ = env.step("Hm.")
    assert "no answer" in said
    _, reward, terminated, _, info = env.step(rf"\boxed{{{RIGHT[entry.name]}}}")
    assert (reward, terminated) == (0.25, True)
    assert info["rewards"] == {"correct": 1.0, "attempts": 3.0}
    env.reset(seed=0)
    assert [env.step(turn)[1:4] for turn in (r"\boxed{999}", "I do not know.", r"\boxed{999}")] == [
        *[(0.0, False, False)] * 2,
        (0.0, True, False),
    ]


@sets
def test_with_tools_only_an_answer_uses_up_the_attempt(entry: MathSet, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", [PUBLISHED[entry.name]])
    env = make(entry.tools_id, data=data, tool_format="hermes")
    _, info = env.reset(seed=0)
    assert [tool["function"]["name"] for tool in info["tools"]] == ["calculator", "python"]
    right = RIGHT[entry.name]
    for words in ("Let me think.", f"First I find ${right}$, then I will call the tool.", f"The result is {right}."):
        assert "neither a tool call nor an answer" in env.step(words)[0]
    assert env.step("<tool_call>{calculator</tool_call>")[0].startswith("Error: ")
    beside = call(env, "calculator", expression="1+1") + rf" \boxed{{{RIGHT[entry.name]}}}"
    assert env.step(beside)[:3] == ("2", 0.0, False)
    assert env.step(rf"\boxed{{{RIGHT[entry.name]}}}")[1:3] == (1.0, True)
    for words in (rf"\boxed{{{right}}}", f"The answer is {right}.", f"#### {right}"):
        env.reset(seed=0)
        assert env.step(words)[1:3] == (1.0, True)
    env.reset(seed=0)
    assert env.step(r"\boxed{999}")[1:3] == (0.0, True)
    plain = make(entry.env_id, data=data)
    plain.reset(seed=0)
    assert plain.step("Let me think.")[1:3] == (0.0, True)


@pytest.mark.parametrize(("solution", "answer"), table(__file__, "worked_solutions"))
def test_where_a_row_has_only_a_worked_solution_its_last_box_is_the_answer(math, solution, answer):
    assert math("math", row={"problem": "?", "solution": solution}).task(0).answer == answer


def test_without_files_each_set_is_asked_of_the_hub_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNTREE_DATA", raising=False)
    asked = []

    def load_dataset(name: str, subset: str | None, *, split: str) -> list[Any]:
        asked.append((name, subset, split))
        return [PUBLISHED[entry.name]]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    read_tasks.cache_clear()
    for entry in MATH_SETS:
        wanted = entry.default_split
        assert Math(dataset=entry.name).num_tasks == 1
        assert asked[-1] == (entry.hub[wanted].name, entry.hub[wanted].subset, entry.hub[wanted].split)
    read_tasks.cache_clear()


def test_attempts_and_tools_keep_the_rules(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", [PUBLISHED["math"]] * 3)
    require_conformance(functools.partial(Math, dataset="math", data=data, attempts=3, use=["calculator"]))


def test_choices_have_letters_metadata_the_difficulty_and_python_is_a_tool_with_processes_of_its_own(math: Any) -> None:
    assert math("mmlu-stem").task(0).prompt == "Which?\nA. x\nB. y\nC. z\nD. w"
    assert math("math").task(0).metadata == {"subject": "Algebra", "level": 2}
    env = math("math", use=["calculator", "python"])
    _, info = env.reset(seed=0)
    assert [tool["function"]["name"] for tool in info["tools"]] == ["calculator", "python"]
    assert use(env, "python", code="print(1 / 2)").strip() == "0.5"
    assert env.step(r"\boxed{0.5}")[1] == 1.0
    env.close()


def test_an_answer_that_cannot_be_judged_is_a_failure_and_the_question_given_back_is_wrong(math: Any) -> None:
    env = math("math", row={"problem": "What is expected?", "answer": r"\mathbb{E}[X]"})
    env.reset(seed=0)
    terminated, truncated, info = env.step(r"\boxed{7}")[2:]
    assert (terminated, truncated, info["stop_reason"]) == (False, True, "failure")
    assert UngradedAnswer.__name__ in info["failure"]
    env = math("math", row={"problem": "Compute $99^2+99+1$.", "answer": "9901"}, attempts=2)
    env.reset(seed=0)
    assert "not right" in env.step(r"\boxed{99^2+99+1}")[0]
    assert env.step(r"\boxed{9901}")[1] == 1.0


@pytest.mark.parametrize(("name", "row", "complaint"), table(__file__, "malformed_rows"))
def test_a_malformed_row_names_file_line_and_field(tmp_path: Path, name: str, row: Any, complaint: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [PUBLISHED[name], row])
    with pytest.raises(DataError) as error:
        Math(dataset=name, data=path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert complaint in str(error.value)


def test_an_unknown_set_or_split_is_refused_and_the_folder_of_data_is_used_before_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TURNTREE_DATA", raising=False)
    with pytest.raises(DataError, match="did you mean 'math500'"):
        Math(dataset="maths500")
    with pytest.raises(DataError, match="has the splits aime24, aime25, aime_1983_2023, not 'aime26'"):
        Math(dataset="aime", split="aime26")
    folder = tmp_path / "data" / "minerva_math"
    folder.mkdir(parents=True)
    write_rows(folder / "test.jsonl", [PUBLISHED["minerva"]])
    monkeypatch.setenv("TURNTREE_DATA", str(tmp_path))
    assert Math(dataset="minerva").num_tasks == 1


def numbers(path: Path, **arguments: Any) -> str:
    """Which rows become tasks."""
    env = Math(dataset="math", data=path, split="s", **arguments)
    return "".join(env.task(i).id[-1] for i in range(env.num_tasks or 0))


@pytest.mark.parametrize(
    ("without", "left"), [([], "0123"), (["math500"], "02"), (["amc23"], "013"), (["any"], "0"), (["aime24"], "0123")]
)
def test_rows_that_repeat_an_evaluation_set_are_left_out_on_request(tmp_path: Path, without: list, left: str) -> None:
    said = [{"overlaps_eval": []}, {"overlaps_eval": ["math500", "math_test"]}, {"overlaps_eval": ["amc23"]}]
    rows = [{"question": "a", "answer": "1", **fields} for fields in (*said, {"in_math500": True})]
    assert numbers(write_rows(tmp_path / "rows.jsonl", rows), without=without) == left


def test_levels_choose_the_problems(tmp_path: Path) -> None:
    levels = [{"level": 1}, {"level": "Level 3"}, {"difficulty": 4.5}, {"level": "Level ?"}, {"level": None}, {}]
    path = write_rows(tmp_path / "rows.jsonl", ({"question": "a", "answer": "1", **level} for level in levels))
    assert numbers(path) == "012345"
    assert numbers(path, max_level=3) == "01"
    assert numbers(path, min_level=3) == "12"
    assert numbers(path, min_level=2, max_level=4) == "1"
    with pytest.raises(DataError, match="no task has a level from 9 to None"):
        numbers(path, min_level=9)


def test_a_set_that_does_not_say_what_it_repeats_is_not_called_clean(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [PUBLISHED["math"]])
    with pytest.raises(DataError, match=r"rows.jsonl:1: cannot leave out what math500 holds"):
        Math(dataset="math", data=path, without=["math500"])
    wrong = write_rows(tmp_path / "wrong.jsonl", [{**PUBLISHED["math"], "overlaps_eval": "math500"}])
    with pytest.raises(DataError, match="'overlaps_eval' must be a list of names"):
        Math(dataset="math", data=wrong, without=["any"])


@pytest.mark.parametrize(("name", "split", "count"), table(__file__, "published_sets"))
def test_the_published_sets_are_read_and_their_own_answers_win(name: str, split: str, count: int, monkeypatch) -> None:
    published(find_set(name).folder or name)
    monkeypatch.setenv("TURNTREE_DATA", str(SHARED))
    env = Math(dataset=name, split=split)
    assert env.num_tasks == count
    for index in (0, count // 2, count - 1):
        env.reset(options={"index": index})
        assert env.step(rf"It is \boxed{{{env.current_task.answer}}}.")[1] == 1.0, env.current_task
