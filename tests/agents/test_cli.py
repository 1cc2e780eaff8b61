import importlib.util
import io
import json
import os
import sys
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import chat_stand_in
import escaping
import pytest
from command import Said
from escaping import NAMED, TASKS, WELL
from interpreter import python
from machine_speed import patience
from unlearning import CAUSES

from turntree.agents.commands.app import _print_step
from turntree.agents.engines.engine_choice import EngineChoice, EngineName, open_engine
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.record import read_episodes, read_records
from turntree.agents.errors import MissingExtra
from turntree.agents.verl.config.compose import compose, verl_defaults
from turntree.agents.verl.records.step_reports import StepReport
from turntree.envs import registry
from turntree.envs.math.arithmetic import Arithmetic
from turntree.envs.parsers import FORMATS

ROOT = Path(__file__).resolve().parents[2]


def play(model: Path, *more: Any) -> tuple[Any, ...]:
    short = ("--max-tokens", 12, "--concurrency", 4)
    return ("eval", "turntree/Arithmetic-v0", "--engine", "local", "--model", model, "-n", 5, *short, *more)


@pytest.fixture
def evaluate(turntree: Any, tiny_model: Path) -> Any:
    def run(*more: Any) -> Said:
        result = turntree(*play(tiny_model, *more))
        assert result.status == 0, result.err
        return result

    return run


@pytest.mark.parametrize("command", ["train grpo_arithmetic_cpu actor_rollout_ref.model.path=some/model", "demo"])
def test_a_training_without_its_packages_names_what_to_install(turntree, command, monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    verl_defaults.cache_clear()
    monkeypatch.chdir(tmp_path)
    result = turntree(*command.split())
    assert (result.status, list(tmp_path.iterdir())) == (2, [])
    pip = f'{sys.executable} -m pip install -e "{ROOT}[train]"'
    assert result.err == f"turntree: training needs packages that are not installed; run: {pip}\n"


def test_the_version_is_that_of_the_package_and_the_help_names_every_format_of_tool_calls(turntree: Any) -> None:
    assert turntree("--version")[:2] == (0, f"turntree {metadata.version('turntree')}\n")
    for command in ("eval", "serve"):
        assert not [name for name in FORMATS if name not in turntree(command, "--help").out]


def test_the_help_states_the_demos_time_and_the_models_size(turntree: Any) -> None:
    demo = " ".join(turntree("demo", "--help").out.split())
    assert "about 5 minutes" in demo
    assert "turntree demo --steps 10" in demo
    assert "writes 542 MB (517 MiB) to DIR" in " ".join(turntree("model", "smollm2", "--help").out.split())


def test_list_shows_every_environment_with_a_line_about_it(turntree: Any) -> None:
    lines = {line.split()[0]: line.split()[1:] for line in turntree("list").out.splitlines()[1:] if line.strip()}
    assert len(lines["turntree/Arithmetic-v0"]) > 2
    assert len(lines["turntree/GSM8K-v0"]) > 2


def test_eval_plays_tasks_and_prints_how_it_went(evaluate: Any, tmp_path: Path) -> None:
    out = tmp_path / "episodes.jsonl"
    result = evaluate("--out", out)
    episodes = list(read_episodes(out))
    assert len(episodes) == 5
    tokens = sum(len(turn.completion.token_ids) for episode in episodes for turn in episode.turns)
    assert (result.row["accuracy"], result.row["95 % interval"]) == ("0.000 (0 of 5)", "0.000 to 0.434")
    assert result.row["tokens per episode"] == f"{tokens / 5:.1f}"
    assert float(result.row["tokens per forward pass"]) >= 1.0
    assert result.row["failures (left out)"] == "0"
    cut = sum(turn.completion.finish_reason == "length" for episode in episodes for turn in episode.turns)
    assert result.row["turns cut by a token limit"] == f"{cut} of {sum(len(e.turns) for e in episodes)}"
    assert cut
    assert "of the turns were cut off at a token limit" in result.out
    assert "warning: no episode called a tool, but the environment has calculator" in result.out
    assert "warning: the rewards are equal in every group" in result.out


@pytest.mark.parametrize("cause", CAUSES)
def test_eval_warns_below_its_table_why_nothing_can_be_learned(turntree, tiny_model, chatml, monkeypatch, cause):
    result, groups = CAUSES[cause]
    if cause == "half cut":
        result = "40% of the turns were cut"  # too many for an evaluation
    script = ScriptedEngine([turn for group in groups for turns in group for turn in turns], chatml)
    monkeypatch.setattr("turntree.agents.engines.engine_choice.open_engine", lambda choice: nullcontext(script))
    few = ("-n", len(groups), "--samples", 2, "--concurrency", 1, "--max-tokens", 100)
    out = turntree("eval", "unlearning:Sums", "--model", tiny_model, *few).out
    table, *warnings = out.split("warning: ")
    assert "cached prompt tokens" in table
    assert [line.startswith(result) for line in warnings] == [True] * bool(result), out


def test_an_evaluation_ends_with_its_own_status_whatever_the_environment_raises(turntree: Any, tmp_path: Path) -> None:
    # In its own process: if something escapes, the process ends with the environment's status.
    out, support = tmp_path / "out.jsonl", str(Path(escaping.__file__).parent)
    answer = lambda body: chat_stand_in.said(escaping.policy(body["messages"][-1]["content"]))  # noqa: E731
    with chat_stand_in.ChatStandIn(answer) as server:
        words = ("eval", "escaping:Escaping", "--engine", "openai", "--base-url", f"{server.url}/v1")
        words += ("--env-arg", f"step_seconds={patience(3)}")
        asked = ("-m", "turntree.agents.cli", *words, "-n", str(len(TASKS) + WELL + 1), "--out", str(out), "--json")
        ended = python(*asked, env={**os.environ, "PYTHONPATH": support})
        assert ended.returncode == 0, ended.stderr
        table = turntree(*words, "-n", 2)
    output = json.loads(ended.stdout)[0]
    assert (output["solved"], output["scored"], output["failures"]) == (WELL, WELL, len(TASKS) + 1)
    failures = {record.labels["index"]: record.episode.failure for record in read_records(out)}
    assert all(failures[index].endswith(NAMED[task.split()[1]]) for index, task in enumerate(TASKS))
    assert "did not end within step_seconds" in failures[len(TASKS) + WELL]
    assert table.status == 1, "none could be judged"
    assert "first failure: tool 'breaks' raised SystemExit: 0" in table.out


@pytest.mark.parametrize(("command", "errors", "status"), [("exit 3", 5, 1), ("echo 4", 5, 1), ("", 0, 0)])
def test_programs_that_never_ask_the_policy_are_no_bad_policy(turntree, tiny_model, command, errors, status):
    # Control: a program that asks.
    program = f'command=["sh", "-c", "{command}"]' if command else "program=programs:silent_after_a_turn"
    asked = list(play(tiny_model, "--env-arg", "env=turntree/Arithmetic-v0", "--env-arg", program))
    asked[1] = "turntree.agents.harness.env:HarnessEnv"
    output = turntree(*asked)
    assert (output.status, output.row["failures (left out)"], output.row["accuracy"]) == (status, "0", "0.000 (0 of 5)")
    assert output.row.get("programs without an answer", "0") == str(errors)
    why = {"exit 3": "the program ended with status 3", "echo 4": "the program answered without asking the policy"}
    assert ("first program error:" in output.out) is bool(errors)
    assert why.get(command, "") in output.out


def test_a_steps_line_names_the_reason_of_a_missing_answer(capsys: pytest.CaptureFixture[str]) -> None:
    result = "4 of 4 programs gave no answer; the first error of step 3 (program, e): [Errno 2] gone"
    passes = "nan tokens per forward pass"
    for turns, error, words in ((0.0, result, "no turns sampled"), (1.5, "", passes)):
        metrics = {"critic/score/mean": 0.0, "timing_s/step": 2.0, "turntree/turns": turns}
        _print_step(StepReport(step=3, metrics=metrics, engine={}, program_error=error))
        line = f"step 3: reward 0.000, {words}, 2.0 s"
        assert capsys.readouterr().out == f"{line}; {error}\n" if error else f"{line}\n"


def test_a_killed_evaluation_resumes_and_can_be_extended(evaluate: Any, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    sampled = ("--temperature", 1, "--samples", 2)
    evaluate(*sampled, "--out", whole)
    lines = whole.read_bytes().splitlines(keepends=True)
    cut.write_bytes(b"".join(lines[:4]) + lines[4][:100])  # killed while the fifth was written
    output = evaluate(*sampled, "--out", cut, "--json").json[0]
    assert cut.read_bytes().splitlines()[:4] == [line.rstrip() for line in lines[:4]]
    assert len(cut.read_bytes().splitlines()) == 10
    assert {"avg@2", "pass@1", "pass@2", "maj@2"} <= set(output)
    again = evaluate(*sampled, "--out", whole, "--json").json[0]
    how_fast = ("seconds", "cached prompt tokens", "tokens per forward pass")
    assert {**output, **dict.fromkeys(how_fast)} == {**again, **dict.fromkeys(how_fast)}


def test_a_complete_evaluation_loads_no_model_and_reports_that(
    turntree: Any, evaluate: Any, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, loaded = tmp_path / "episodes.jsonl", Mock(side_effect=AssertionError)
    first = evaluate("--out", out, "--json").json[0]
    before = out.read_bytes()
    monkeypatch.setattr("turntree.agents.engines.engine_choice.open_engine", loaded)
    result = evaluate("--out", out, "--json")
    assert "all 5 episodes are finished already; no model is loaded" in result.err
    assert ({**result.json[0], "seconds": 0}, out.read_bytes()) == ({**first, "seconds": 0}, before)
    with pytest.raises(AssertionError):  # control: one is missing
        turntree(*play(tiny_model, "--out", out, "-n", 6))
    with pytest.raises(AssertionError):
        turntree(*play(tiny_model, "--out", out, "--restart"))
    assert out.read_bytes() == before, "a model that cannot be loaded costs no episode"


def test_episodes_of_other_settings_are_neither_mixed_in_nor_lost(turntree, evaluate, tiny_model, tmp_path):
    out = tmp_path / "episodes.jsonl"
    evaluate("--out", out)
    before = out.read_bytes()
    result = turntree(*play(tiny_model, "--seed", 1, "--out", out))
    assert (result.status, "--restart" in result.err, out.read_bytes()) == (2, True, before)
    evaluate("--seed", 1, "--out", out, "--restart")


def test_a_suite_plays_each_of_its_sets_and_writes_one_table(turntree: Any, tiny_model: Path, tmp_path: Path) -> None:
    suite = tmp_path / "mine.yaml"
    suite.write_text(
        "suite:\n- {name: sums, env: turntree/Arithmetic-v0, count: 2, samples: 2, temperature: 1.0, max_tokens: 8}\n"
        "- {env: turntree/Game24-v0, count: 1, max_tokens: 8}\n"
    )
    result = turntree("eval", suite, "--model", tiny_model, "--out", tmp_path / "results")
    assert result.status == 0, result.err
    table = (tmp_path / "results" / "results.md").read_text().splitlines()
    assert [line.split("|")[1].strip() for line in table] == ["evaluation", "---", "sums", "turntree/Game24-v0"]
    assert len(list(read_episodes(tmp_path / "results" / "sums.jsonl"))) == 4
    assert json.loads((tmp_path / "results" / "results.json").read_text())[1]["tasks"] == 1


def test_a_tool_that_raises_is_counted_and_left_out(turntree, tiny_model, monkeypatch):
    monkeypatch.setattr(Arithmetic, "reply", Mock(side_effect=OSError("the disk is full")))
    result = turntree(*play(tiny_model))
    assert (result.status, result.row["failures (left out)"], result.row["accuracy"]) == (1, "5", "nan (0 of 0)")
    assert "first failure: reply() raised OSError: the disk is full" in result.out
    assert "Traceback" not in result.err


def test_arguments_and_rows_reach_the_environment(evaluate, turntree, tiny_model, tmp_path):
    out = tmp_path / "episodes.jsonl"
    pairs = ("--env-arg", "max_numbers=2", "--env-arg", "system_prompt=Be brief.")
    evaluate("--tool-format", "compact", *pairs, "--out", out)
    for episode in read_episodes(out):
        assert episode.messages[0].content == "Be brief."
        assert sum(episode.task.prompt.count(operator) for operator in "+-*") == 1
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"question": "One and one?", "answer": "#### 2"}) + "\n")
    result = turntree("eval", "turntree/GSM8K-v0", "--model", tiny_model, "--data", data, "--max-tokens", 4)
    assert result.row["accuracy"] == "0.000 (0 of 1)"


def test_a_missing_library_names_the_extra(turntree: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = turntree(*play(tiny_model))
    assert result.status == 2
    assert f'pip install -e "{ROOT}[local]"' in result.err
    assert result.err.count("\n") == 1


async def test_a_missing_torch_names_the_extra(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("turntree.agents.engines.local")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    choice = EngineChoice(name=EngineName.LOCAL, model=str(tiny_model), max_batch=1, max_context=64)
    with pytest.raises(MissingExtra, match=r"pip install .*\[local\]"):
        async with open_engine(choice):
            pass


def test_train_and_demo_hand_their_arguments_on(turntree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    launch, demo = ModuleType("launch"), ModuleType("run")
    launch.train = lambda config, overrides, **_: calls.append((config, overrides)) or 3  # type: ignore[attr-defined]
    demo.main = lambda **options: calls.append(options) or 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "turntree.agents.verl.launch", launch)
    monkeypatch.setitem(sys.modules, "turntree.agents.demo.run", demo)
    assert turntree("train", "demo", "trainer.total_training_steps=2", "+a.b=1").status == 3
    assert turntree("train", "demo", "--model", "it's/m").status == 3
    assert turntree("demo", "--steps", 5, "--out", "runs/x").status == 0
    assert calls == [
        ("demo", ["trainer.total_training_steps=2", "+a.b=1"]),
        ("demo", [r"actor_rollout_ref.model.path='it\'s/m'"]),
        {"model": None, "steps": 5, "out": Path("runs/x"), "seed": 0},
    ]


def test_check_prints_each_rule_and_fails_where_one_is_broken(turntree: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result = turntree("check", "turntree/Arithmetic-v0", "--env-arg", "max_numbers=3")
    assert result.status == 0, result.err
    lines = result.out.splitlines()[1:]
    assert len(lines) >= 12
    assert all(line.strip().startswith("ok") for line in lines)
    monkeypatch.setattr(Arithmetic, "close", lambda self: 1 / 0)
    result = turntree("check", "turntree/Arithmetic-v0")
    assert result.status == 1
    assert any("FAILED" in line and "ZeroDivisionError" in line for line in result.out.splitlines())


def test_check_shows_the_first_prompt_of_a_model_and_fails_if_it_hides_the_tools(
    turntree: Any, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asked_here.py").write_text((ROOT / "examples" / "two_tools.py").read_text())
    monkeypatch.chdir(tmp_path)
    try:
        result = turntree("check", "asked_here:Shop", "--model", tiny_model)
        assert result.status == 0, result.out + result.err
        assert "You can call these tools:" in result.out
        assert '{"name": "price", "arguments": {"item": "..."}}' in result.out
        result = turntree("check", "asked_here:Shop", "--model", tiny_model, "--env-arg", "describes_tools=true")
        assert result.status == 1
        assert "FAILED: the prompt does not name the tool price; describe it in the system prompt" in result.out
        assert "FAILED: the prompt does not show how to call a tool in the format hermes" in result.out
    finally:
        sys.modules.pop("asked_here", None)


def test_attack_reports_undeserved_rewards_and_exits_with_1_above_the_bound(turntree, tmp_path, monkeypatch):
    (tmp_path / "attacked_here.py").write_text(
        "from turntree.envs import Env, Reply, Task\n\n\nclass Sound(Env):\n    num_tasks = 4\n\n"
        "    def task(self, index):\n        return Task(id=str(index), prompt='?', answer='abcd'[index] * 5)\n\n"
        "    def reply(self, message):\n        right = message.content.strip() == self.current_task.answer\n"
        "        return Reply(reward=right, done=True, rewards={'right': right})\n\n\n"
        "class Faulty(Sound):\n    def reply(self, message):\n"
        "        return Reply(reward=message.content in self.current_task.answer, done=True)\n"
    )
    monkeypatch.chdir(tmp_path)
    try:
        result = turntree("attack", "attacked_here:Sound", "--out", "report.json")
        assert (result.status, "reward of silence: reward 0, right 0" in result.out) == (0, True), (
            result.out + result.err
        )
        report = json.loads((tmp_path / "report.json").read_text())
        assert report["findings"] == {}
        assert next(row for row in report["rows"] if row["policy"] == "a solution")["tasks"] == 4
        assert turntree("attack", "attacked_here:Sound", "-n", 2, "--json").json["tasks"] == 2
        assert turntree("check", "attacked_here:Sound", "--attack").status == 0
        result = turntree("attack", "attacked_here:Faulty")
        assert result.status == 1
        assert "silence: paid in 4 of 4 tasks without a solution" in result.out.splitlines()
        result = turntree("check", "attacked_here:Faulty", "--attack")
        assert (result.status, "FAILED" in result.out, "FOUND" in result.out) == (1, False, True)
        assert turntree("check", "attacked_here:Faulty").status == 0
        assert turntree("attack", "attacked_here:Faulty", "--bound", 1, "--luck", 1).status == 0
    finally:
        sys.modules.pop("attacked_here", None)


@pytest.mark.parametrize("name", ["doubling_here:Doubling", "doubling_here:here/Doubling-v0"])
def test_every_command_takes_a_module_of_the_folder_as_train_does(turntree, tiny_model, tmp_path, monkeypatch, name):
    source = (ROOT / "examples" / "tiny_environment.py").read_text()
    (tmp_path / "doubling_here.py").write_text(
        f"{source}\nfrom turntree.envs import register\n\nregister('here/Doubling-v0', Doubling)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("42\n"))
    few = ("-n", 2, "--max-tokens", 4)
    try:
        assert turntree("check", name).status == 0
        assert "done, reward 1" in turntree("play", name, "--index", 21).out
        result = turntree("eval", name, "--model", tiny_model, *few)
        assert result.status == 0, result.out + result.err
        assert turntree("bench", tiny_model, name, *few, "--samples", 1, "--epochs", 1).status == 0
        named = f"turntree.env={name}".replace(":", r"\:")
        assert compose(None, [f"actor_rollout_ref.model.path={tiny_model}", named]).settings.env == name
        result = turntree("check", "doubling_here:Dubling")
        assert (result.status, result.err.count("\n")) == (2, 1)
        assert "did you mean 'Doubling'" in result.err
    finally:
        registry.unregister("here/Doubling-v0")
        sys.modules.pop("doubling_here", None)


def test_play_shows_a_task_as_it_is_written(turntree: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not as rich markup, in which `\\[` is a bracket and `:smile:` an emoji.
    source = (ROOT / "examples" / "tiny_environment.py").read_text()
    (tmp_path / "displayed.py").write_text(
        source.replace("What is twice {index}?", r"\\[ [bold]{index}[/bold] :smile: \\]")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("42\n"))
    assert r"\[ [bold]21[/bold] :smile: \]" in turntree("play", "displayed:Doubling", "--index", 21).out


def test_the_help_needs_none_of_the_heavy_libraries() -> None:
    # Slow imports belong into the command that needs them, so that --help is fast.
    code = (
        "import sys\nfrom turntree.agents.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(*sorted({'gymnasium', 'numpy', 'rich', 'sympy', 'torch'} & set(sys.modules)), file=sys.stderr)"
    )
    result = python("-c", code, check=True)
    assert "Commands:" in result.stdout
    assert result.stderr.split() == []
