import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet
import pytest
from escaping import TASKS
from machine_speed import patience
from poor_machine import SYSTEM_PYTHON, run_poorly
from tables import table

from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.episodes.dataset import MOST_TASKS, main, make_env, rows, write_rows
from turntree.envs import UnknownEnvironment
from turntree.envs.math.arithmetic import Arithmetic

COMPACT = {"tool_format": "compact", "system_prompt": "", "describes_tools": True}


def test_a_row_names_the_task_and_holds_its_prompt() -> None:
    row = list(rows("turntree/Arithmetic-v0", COMPACT, count=3, split="val"))[2]
    task = make_env("turntree/Arithmetic-v0", COMPACT).task(2)
    assert row["prompt"] == [{"role": "user", "content": task.prompt}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": task.answer}
    assert row["extra_info"] == {"index": 2, "split": "val", "task_id": task.id}
    assert (row["agent_name"], row["env_id"]) == ("turntree_env", "turntree/Arithmetic-v0")
    assert json.loads(row["env_kwargs"]) == COMPACT


def test_more_tasks_than_there_are_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "two.jsonl"
    file.write_text('{"question": "1+1?", "answer": "#### 2"}\n{"question": "1+2?", "answer": "#### 3"}\n')
    with pytest.raises(ConfigError, match=r"has only 2 tasks .* 3 were requested; set turntree\.val_tasks=2"):
        list(rows("turntree/GSM8K-v0", {"data": str(file)}, count=3, split="val"))
    assert len(list(rows("turntree/GSM8K-v0", {"data": str(file)}, count=None, split="val"))) == 2


def test_without_a_number_an_environment_without_end_has_a_bounded_number_of_rows() -> None:
    assert len(list(rows("turntree/Arithmetic-v0", COMPACT, count=None, split="val"))) == MOST_TASKS["val"]


def test_data_that_are_not_to_be_had_name_the_key_for_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("datasets.load_dataset", Mock(side_effect=FileNotFoundError("nothing")))
    monkeypatch.delenv("TURNTREE_DATA", raising=False)
    for settings in ({}, {"data": str(tmp_path / "no.jsonl")}):
        with pytest.raises(ConfigError, match=r": turntree\.env_kwargs\.data=FILE$"):
            list(rows("turntree/GSM8K-v0", settings, count=1, split="train"))


@pytest.mark.parametrize(("env", "settings", "kind", "message"), table(__file__, "what_is_not_there"))
def test_what_is_not_there_is_named(env: str, settings: dict[str, Any], kind: str, message: str) -> None:
    with pytest.raises({"config": ConfigError, "unknown": UnknownEnvironment}[kind], match=message):
        make_env(env, settings)


def test_an_environment_that_no_package_registers_is_named_by_module_and_class() -> None:
    env = make_env("turntree.envs.math.arithmetic:Arithmetic", {"max_value": 5})
    assert isinstance(env, Arithmetic)
    assert env.max_value == 5


def test_a_task_whose_reset_would_end_the_process_is_named(tmp_path: Path) -> None:
    task = TASKS.index("reset exit")
    settled = write_rows(tmp_path / "rows.parquet", "escaping:Escaping", {}, count=task, split="train")
    assert settled == task
    with pytest.raises(ConfigError, match=rf"cannot start task {task}: reset\(\) raised SystemExit: 0"):
        write_rows(tmp_path / "rows.parquet", "escaping:Escaping", {}, count=task + 1, split="train")


def test_the_command_line_writes_the_rows_into_a_file(tmp_path: Path) -> None:
    file = tmp_path / "data" / "rows.parquet"
    main(["turntree/Arithmetic-v0", str(file), "-n", "2", "--env-kwargs", json.dumps(COMPACT), "--split", "val"])
    read = pyarrow.parquet.read_table(file).to_pylist()
    assert read == list(rows("turntree/Arithmetic-v0", COMPACT, count=2, split="val"))


@pytest.mark.skipif(not os.access(SYSTEM_PYTHON, os.X_OK), reason=f"there is no {SYSTEM_PYTHON}")
def test_a_tool_that_could_read_the_answers_from_disk_is_refused_unless_it_was_asked_for() -> None:
    code = table(__file__, "coding_rows").replace("PYTHON", repr(SYSTEM_PYTHON))
    refused = run_poorly(code, TURNTREE_ISOLATION="").stderr
    assert (
        "could read the answers of its own tasks from this machine's disk: code runs in a separate process" in refused
    )
    assert run_poorly(code, TURNTREE_ISOLATION="process").stdout == "2\n"
    assert subprocess.check_output([sys.executable, "-c", code], timeout=patience(60)) == b"2\n"  # with namespaces
