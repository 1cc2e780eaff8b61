import os
from pathlib import Path
from typing import Any

import pytest
from playing import write_rows

from turntree.agents.errors import UsageError
from turntree.agents.evaluation.file import EvalFile
from turntree.agents.evaluation.run import plan
from turntree.agents.evaluation.suite import EvalTask
from turntree.agents.files import OneWriter

ROWS: list[dict[str, object]] = [{"id": str(number), "question": f"{number}?", "answer": "4"} for number in range(3)]


def data_of(path: Path) -> str:
    return plan(EvalTask(env="turntree/GSM8K-v0", env_args={"data": str(path)}, count=2)).data


@pytest.mark.parametrize("changed", [{"id": "x"}, {"question": "x?"}, {"answer": "5"}])
def test_another_data_set_under_the_same_path_is_another_one(tmp_path: Path, changed: dict[str, object]) -> None:
    path = write_rows(tmp_path / "test.jsonl", ROWS)
    first = data_of(path)
    assert data_of(write_rows(path, ROWS)) == first
    assert data_of(write_rows(path, [*ROWS[:2], {**ROWS[2], **changed}])) != first  # beyond the tasks that are played


def test_episodes_on_other_data_are_refused(turntree: Any, tiny_model: Path, tmp_path: Path) -> None:
    path, out = write_rows(tmp_path / "test.jsonl", ROWS), tmp_path / "out.jsonl"
    words = ["eval", "turntree/GSM8K-v0", "--env-arg", f"data={path}", "--model", tiny_model, "-n", 1]
    words += ["--max-tokens", 4, "--out", out]
    assert turntree(*words).status == 0
    before = out.read_bytes()
    write_rows(path, [*ROWS[:2], {**ROWS[2], "answer": "5"}])
    result = turntree(*words)
    assert (result.status, "other settings or data" in result.err, out.read_bytes()) == (2, True, before)


def test_two_writers_exclude_each_other_and_the_refusal_names_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first = EvalFile(path, {})
    assert not path.exists(), "nothing is written before it begins"
    first.begin()
    with pytest.raises(UsageError, match=rf"{path.name} is being written by process \d+ on \S+ since .+; wait for it"):
        EvalFile(path, {}, restart=True)
    first.close()
    EvalFile(path, {}).close()
    assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]
    path.write_text("notes\n")
    for _ in range(2):
        with pytest.raises(Exception, match="restart"):
            EvalFile(path, {})
    EvalFile(path, {}, restart=True).close()


def test_the_right_of_a_process_that_died_is_free(tmp_path: Path) -> None:
    if (child := os.fork()) == 0:
        OneWriter(tmp_path / "a")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / ".a.lock").exists()
    OneWriter(tmp_path / "a").close()
    assert not list(tmp_path.iterdir())
