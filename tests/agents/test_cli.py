from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pytest

from turntree.agents.cli import main
from turntree.agents.errors import MissingExtra
from turntree.agents.record import read_episodes
from turntree.envs import registry
from turntree.envs.arithmetic import Arithmetic


class Said:
    """What a command printed and its exit status."""

    def __init__(self, status: Any, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def row(self) -> dict[str, str]:
        """The printed table."""
        cells = [line.split("│") for line in self.out.splitlines() if line.count("│") == 3]
        return {name.strip(): value.strip() for _, name, value, _ in cells}


@pytest.fixture
def turntree(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: Any) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Said(stopped.value.code, captured.out, captured.err)

    return run


def play(model: Path, *more: Any) -> tuple[Any, ...]:
    short = ("--max-tokens", 12, "--concurrency", 4)
    return ("eval", "turntree/Arithmetic-v0", "--engine", "local", "--model", model, "-n", 5, *short, *more)


def test_list_shows_every_environment_with_a_line_about_it(turntree: Any) -> None:
    said = turntree("list")
    assert said.status == 0
    lines = {line.split()[0]: line.split()[1:] for line in said.out.splitlines()[1:] if line.strip()}
    assert len(lines["turntree/Arithmetic-v0"]) > 2
    assert len(lines["turntree/GSM8K-v0"]) > 2


def test_eval_plays_tasks_and_prints_how_it_went(turntree: Any, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "episodes.jsonl"
    out.write_text("left from an earlier run")
    said = turntree(*play(tiny_model, "--out", out))
    assert said.status == 0, said.err
    episodes = list(read_episodes(out))
    assert len(episodes) == 5
    tokens = sum(len(turn.completion.token_ids) for episode in episodes for turn in episode.turns)
    assert said.row["accuracy"] == "0.000 (0 of 5)"
    assert said.row["95 % interval"] == "0.000 to 0.434"
    assert said.row["tokens per episode"] == f"{tokens / 5:.1f}"
    assert float(said.row["tokens per verify step"]) >= 1.0
    assert said.row["failures (left out)"] == "0"


def test_the_same_seed_samples_the_same_with_and_without_speculation(
    turntree: Any, tiny_model: Path, tmp_path: Path
) -> None:
    def tokens(name: str, *more: Any) -> list[Any]:
        said = turntree(*play(tiny_model, "--temperature", 1, "--out", tmp_path / name, *more))
        assert said.status == 0, said.err
        episodes = sorted(read_episodes(tmp_path / name), key=lambda episode: episode.task.id)
        return [turn.completion.token_ids for episode in episodes for turn in episode.turns]

    drafted = tokens("a")
    assert tokens("b", "--no-speculate") == drafted
    assert tokens("c", "--seed", 1) != drafted


def test_rows_of_a_file_are_played(turntree: Any, tiny_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"question": "One and one?", "answer": "#### 2"}) + "\n")
    said = turntree("eval", "turntree/GSM8K-v0", "--model", tiny_model, "--data", data, "--max-tokens", 4, "-n", 20)
    assert said.status == 0, said.err
    assert said.row["accuracy"] == "0.000 (0 of 1)"


def test_a_tool_that_raises_is_counted_and_left_out(
    turntree: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turntree.envs.arithmetic import Arithmetic

    def broken(*_: Any) -> Any:
        raise OSError("the disk is full")

    monkeypatch.setattr(Arithmetic, "reply", broken)
    said = turntree(*play(tiny_model))
    assert said.status == 1
    assert said.row["failures (left out)"] == "5"
    assert said.row["accuracy"] == "nan (0 of 0)"
    assert "first failure: reply() raised OSError: the disk is full" in said.out
    assert "Traceback" not in said.err


def test_arguments_reach_the_environment(turntree: Any, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "episodes.jsonl"
    pairs = ("--env-arg", "max_numbers=2", "--env-arg", "system_prompt=Be brief.")
    turntree(*play(tiny_model, "--tool-format", "compact", *pairs, "--out", out))
    for episode in read_episodes(out):
        assert episode.messages[0].content == "Be brief."
        assert sum(episode.task.prompt.count(operator) for operator in "+-*") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("eval", "turntree/GSM8", "--model", "x"), "did you mean 'turntree/GSM8K-v0'?"),
        (("eval", "turntree/Arithmetic-v0", "--model", "/no/such"), "'/no/such' is not a model directory"),
        (("eval", "turntree/Arithmetic-v0", "--model", "x", "--data", "y"), "does not take these arguments"),
        (("eval", "turntree/Arithmetic-v0", "--model", "x", "--tool-format", "herms"), "mean 'hermes'?"),
        (("eval", "turntree/Arithmetic-v0", "--model", "x", "--env-arg", "a"), "KEY=VALUE"),
        (("eval", "turntree/GSM8K-v0", "--model", "x", "--data", "/no/rows.jsonl"), "/no/rows.jsonl"),
        (("train", "no_such_config"), "no_such_config"),
    ],
)
def test_wrong_input_is_one_line_with_status_2(turntree: Any, arguments: Any, says: str) -> None:
    said = turntree(*arguments)
    assert said.status == 2
    assert says in said.err
    assert said.err.startswith("turntree: ")
    assert said.err.count("\n") == 1


def test_a_malformed_row_names_file_and_line(turntree: Any, tiny_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"question": "One?", "answer": "#### 1"}\n{"question": "Two?"}\n')
    said = turntree("eval", "turntree/GSM8K-v0", "--model", tiny_model, "--data", data)
    assert said.status == 2
    assert "rows.jsonl" in said.err
    assert "2" in said.err.split("rows.jsonl")[1][:12]


def test_a_context_longer_than_the_models_is_refused(turntree: Any, tiny_model: Path) -> None:
    said = turntree(*play(tiny_model, "--max-context", 4096))
    assert said.status == 2
    assert "the model has 512 positions" in said.err


def test_an_unknown_engine_is_refused(turntree: Any) -> None:
    said = turntree("eval", "turntree/Arithmetic-v0", "--model", "x", "--engine", "remote")
    assert said.status == 2
    assert "'remote' is not one of 'local'" in said.err


@pytest.mark.parametrize(("missing", "extra"), [("typer", "cli"), ("transformers", "local")])
def test_a_missing_library_names_the_extra(
    turntree: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, missing: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules, "turntree.agents.commands", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    said = turntree(*play(tiny_model))
    assert said.status == 2
    assert f'pip install "turntree[{extra}]"' in said.err
    assert said.err.count("\n") == 1


def test_a_missing_torch_names_the_extra(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from turntree.agents.commands import _open_local

    for name in list(sys.modules):
        if name.startswith("turntree.agents.engines.local"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"turntree\[local\]"):
        _open_local(str(tiny_model), 1, 64, True, "cpu", "float32")


def test_train_and_demo_hand_their_arguments_on(turntree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    launch, demo = ModuleType("launch"), ModuleType("run")
    launch.train = lambda config, overrides, **_: calls.append((config, overrides)) or 3  # type: ignore[attr-defined]
    demo.main = lambda **options: calls.append(options) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "turntree.agents.verl.launch", launch)
    monkeypatch.setitem(sys.modules, "turntree.agents.demo.run", demo)
    assert turntree("train", "demo", "trainer.total_training_steps=2", "+a.b=1").status == 3
    assert turntree("demo", "--steps", 5, "--out", "runs/x").status == 0
    assert calls == [
        ("demo", ["trainer.total_training_steps=2", "+a.b=1"]),
        {"model": None, "steps": 5, "out": Path("runs/x"), "seed": 0},
    ]


def test_check_prints_each_rule_and_whether_it_is_kept(turntree: Any) -> None:
    said = turntree("check", "turntree/Arithmetic-v0", "--env-arg", "max_numbers=3")
    assert said.status == 0, said.err
    lines = said.out.splitlines()[1:]
    assert len(lines) >= 12
    assert all(line.strip().startswith("ok") for line in lines)


def test_check_fails_where_a_rule_is_broken(turntree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arithmetic, "close", lambda self: 1 / 0)
    said = turntree("check", "turntree/Arithmetic-v0")
    assert said.status == 1
    assert any("FAILED" in line and "ZeroDivisionError" in line for line in said.out.splitlines())


def test_new_env_writes_an_environment_that_check_and_play_find(
    turntree: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = turntree("new", "env", "MyWords")
    assert said.status == 0, said.err
    assert "turntree check my_words:local/MyWords-v0" in said.out
    try:
        assert turntree("check", "my_words:local/MyWords-v0").status == 0
        monkeypatch.setattr(sys, "stdin", io.StringIO("elppa\n"))
        said = turntree("play", "my_words:local/MyWords-v0", "--index", 0)
        assert "done, reward 1" in said.out
    finally:
        gymnasium.registry.pop("local/MyWords-v0", None)
        registry._registered.discard("local/MyWords-v0")
        sys.modules.pop("my_words", None)


def test_a_module_that_is_not_there_is_named(turntree: Any) -> None:
    said = turntree("check", "no_such_module:local/X-v0")
    assert said.status == 2
    assert (
        said.err.strip() == "turntree: there is no module 'no_such_module' in this folder or among the installed ones"
    )
