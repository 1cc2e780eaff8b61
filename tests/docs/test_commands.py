"""The commands of the pages run unchanged, page by page, with a small model under the names that the pages use.

``make test-all`` runs each command in a shell. ``make test`` runs the quick commands in its own process and composes
every training.
"""

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import chatml_tokenizer
from machine_speed import patience
from pages import PAGES, ROOT, blocks, commands, inline_commands, readme_commands
from recorded_run import write_run
from tables import table
from tiny_llama import save_chat_llama

from turntree.agents.cli import main
from turntree.agents.verl import start
from turntree.agents.verl.records.metrics import METRICS
from turntree.spec_tree import DialogueState, SpecForest

#: patterns of commands that do not run here -> the reason
NOT_RUN: dict[str, str] = table(__file__, "not_run_on_pages")
READ_DATA: dict[str, str] = table(__file__, "read_data")  #: patterns of commands that read a data set -> the data set
SMALLER: dict[str, str] = table(__file__, "smaller")  #: options appended to commands that match, to reduce their work
BEFORE: dict[str, list[str]] = table(__file__, "before")  #: commands that run before the commands of a page
#: patterns of all commands -> how ``make test`` runs them, or why it does not
HOW: dict[str, str] = table(__file__, "how")
STANDS_FOR: dict[str, str] = table(__file__, "stands_for")
QUICK: dict[str, str] = table(__file__, "quick")
PATTERNS = [*NOT_RUN, *READ_DATA, *SMALLER]


def found(patterns: dict[str, str], line: str) -> str | None:
    # Only the first matching pattern counts.
    return next((value for pattern, value in patterns.items() if fnmatchcase(line, pattern)), None)


def to_run(page: Path) -> list[str]:
    left_out = NOT_RUN if "TURNTREE_DATA" in os.environ else NOT_RUN | READ_DATA
    return [line for line in commands(page) if found(left_out, line) is None]


def test_every_command_runs_or_has_its_reason_and_each_reason_a_command() -> None:
    lines = [line for page in PAGES for line in commands(page)]
    assert [one for one in PATTERNS if not any(fnmatchcase(line, one) for line in lines)] == []
    named = {name for why in NOT_RUN.values() for name in re.findall(r"tests/[\w/.]+", why)}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    assert sum(found(NOT_RUN, line) is None for line in lines) > 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return furnish(tmp_path)


def furnish(folder: Path) -> Path:
    # Creates the files and models that the commands name.
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template += (  # as Qwen3's reads it
        "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
        "<think>\n\n</think>\n\n{% endif %}"
    )
    save_chat_llama(folder / "DIR", tokenizer, spread=20.0, positions=4096)
    for name in ("BEFORE", "AFTER", "MODEL", "models/qwen", "models/qwen7b", "models/smollm2"):
        shutil.copytree(folder / "DIR", folder / name)
    for name, text in table(__file__, "files").items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    rows = [{"question": f"What is {n} + 1?", "answer": f"It is one more. #### {n + 1}"} for n in range(7000)]
    for name in ("train", "test"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    page = (ROOT / "docs/rewards.md").read_text(encoding="utf-8")
    (folder / "answers.jsonl").write_text(page.partition("```json\n")[2].partition("```")[0], encoding="utf-8")
    (doubling,) = (line for line in readme_commands() if line.startswith("cat > doubling.py"))
    (folder / "doubling.py").write_text("\n".join(doubling.splitlines()[1:-1]))
    return folder


class Shell:
    """Run lines in a folder; a server keeps running until the next server, or to the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self.serving: subprocess.Popen[str] | None = None

    def run(self, line: str) -> str | None:
        if line.startswith("turntree serve "):
            self.end(self.serving)
            self.serving = self.start(line)
            return None
        if line.endswith("--watch"):
            return self.end(self.start(line))
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": patience(900)}
        done = subprocess.run(["bash", "-c", line], cwd=self.folder, env=self.env, text=True, check=False, **given)
        return done.stdout[-1000:] + done.stderr[-2000:] if done.returncode else None

    def start(self, line: str) -> subprocess.Popen[str]:
        # Waits until the server prints its address.
        out = self.folder / "served.txt"
        with out.open("w") as file:
            words = ["bash", "-c", f"exec {line}"]
            serving = subprocess.Popen(words, cwd=self.folder, env=self.env, stdout=file, stderr=file, text=True)
        while "http://" not in out.read_text():
            assert serving.poll() is None, out.read_text()
            time.sleep(0.2)
        return serving

    def end(self, serving: subprocess.Popen[str] | None) -> None:
        if serving is not None:
            serving.terminate()
            serving.wait(patience(60))


@pytest.fixture
def shell(folder: Path) -> Iterator[Shell]:
    one = Shell(folder)
    yield one
    one.end(one.serving)


@pytest.mark.release
@pytest.mark.parametrize("page", [page for page in PAGES if to_run(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, shell: Shell) -> None:
    pytest.importorskip("verl", reason="trainings are among them")
    failed = {}
    for line in BEFORE.get(str(page.relative_to(ROOT)), []) + to_run(page):
        if (said := shell.run(f"{line} {found(SMALLER, line) or ''}".strip())) is not None:
            failed[line] = said
    assert failed == {}, "\n\n".join(f"$ {line}\n{said}" for line, said in failed.items())


def every_command() -> dict[str, list[str]]:
    """Return each command of the pages with the names of its pages, in page order."""
    found: dict[str, list[str]] = {}
    for line in readme_commands():
        found.setdefault(line, []).append("README.md")
    for page in PAGES:
        for line in commands(page) + inline_commands(page):
            found.setdefault(line, []).append(page.name)
    return found


def unknown(lines: Iterable[str]) -> list[str]:
    return [line for line in lines if found(HOW, line) is None]


def test_the_table_knows_every_command_of_the_pages_and_of_readme() -> None:
    lines = every_command()
    assert unknown(lines) == []
    first = {next(pattern for pattern in HOW if fnmatchcase(line, pattern)) for line in lines}
    assert {*HOW} - first <= {"turntree sft *"}, "nothing stands on a page that is so"
    whys = [why for why in HOW.values() if why not in ("run", "train", "text")]
    named = {name for why in whys for name in re.findall(r"tests/[\w/.]+", why)}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    assert unknown(["turntree evaluate ENV", "nvidia-smi", *lines]) == ["turntree evaluate ENV", "nvidia-smi"]


@pytest.fixture(scope="module")
def command_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = furnish(tmp_path_factory.mktemp("commands"))
    shown = [
        (ROOT / "docs/howto/environment.md", 0, "mymodule.py"),
        (ROOT / "docs/howto/reward.md", 0, "my_rewards.py"),
    ]
    for page, number, name in shown:
        code = [block.text for block in blocks(page) if block.language == "python"][number]
        (folder / name).write_text(code.partition("\nrubric = ")[0])  # which the page says to leave out
    run = write_run(folder / "runs/demo")
    for name in ("doubling", "agent", "grpo_arithmetic_cpu"):
        shutil.copytree(run, folder / "runs" / name)
    shutil.copytree(folder / "DIR", folder / "models/shop")  # which turntree sft writes
    (folder / "runs/last_week").mkdir()
    forest = SpecForest()
    forest.insert(DialogueState.from_tokens([1, 2], task="sum/1", env="pages"), [3, 4])
    forest.save(folder / "runs/last_week/forest.npz")
    rows = "".join(json.dumps({"question": f"What is {n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(7000))
    for name in ("gsm8k", "math"):
        (folder / "data" / name).mkdir(parents=True)
        for split in ("train", "test"):
            (folder / "data" / name / f"{split}.jsonl").write_text(rows)
    return folder


def said_of(line: str, capsys: pytest.CaptureFixture[str]) -> str | None:
    # The output of a failed command, ``None`` if it succeeded.
    for word, meant in STANDS_FOR.items():
        line = re.sub(rf"(?<![\w/.-]){word}(?![\w.-])", meant, line)
    words = [word for word in shlex.split(line) if not re.fullmatch(r"[A-Z_]+=\S*", word)][1:]
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(words)
    said = capsys.readouterr()
    return said.out[-1000:] + said.err[-2000:] if stopped.value.code else None


@pytest.fixture
def here(command_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(command_folder)
    monkeypatch.setenv("TURNTREE_DATA", str(command_folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    return command_folder


@pytest.fixture
def every_model_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "hub_variables", lambda model: {})


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Trainings of one environment differ in other settings, so equal task sets are copied.
    write_rows, kept = start.write_rows, {}

    def write_or_copy(path: Path, env: str, settings: Any, **options: Any) -> Any:
        key = json.dumps([env, settings, options], sort_keys=True, default=str)
        if key in kept:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(kept[key][0], path)
        else:
            done = write_rows(path, env, settings, **options)
            kept[key] = (shutil.copyfile(path, tmp_path / f"{len(kept)}.parquet"), done)
        return path if isinstance(kept[key][1], Path) else kept[key][1]

    monkeypatch.setattr(start, "write_rows", write_or_copy)


@pytest.mark.usefixtures("drawn_once", "every_model_exists")
def test_every_training_of_the_pages_is_composed_and_its_tasks_are_drawn(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("verl", reason="a training is composed with verl")
    lines = [line for line in every_command() if found(HOW, line) == "train"]
    assert len(lines) > 25
    checked = {line: f"{line.replace('--check', '')} --check" for line in lines}
    failed = {line: said for line in lines if (said := said_of(checked[line], capsys))}
    assert failed == {}, "\n\n".join(f"$ {line}\n{said}" for line, said in failed.items())
    assert said_of("turntree train engine=vllm size=7b env=maths --check", capsys)


@pytest.mark.usefixtures("every_model_exists")
def test_commands_that_need_no_gpu_and_no_minute_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in every_command() if found(HOW, line) == "run"]
    assert len(lines) > 40
    step_inline = {line: f"{line} {found(QUICK, line) or ''}" for line in lines}
    assert (
        said_of("turntree eval turntree/Arithmetic-v0 --model DIR -n 1 --max-tokens 4 --out before.jsonl", capsys)
        is None
    )
    shutil.copy("before.jsonl", "after.jsonl")
    failed = {line: said for line in lines if (said := said_of(step_inline[line], capsys))}
    assert failed == {}, "\n\n".join(f"$ {line}\n{said}" for line, said in failed.items())
    assert said_of("turntree view runs/none", capsys)


@pytest.mark.usefixtures("every_model_exists")
def test_the_check_is_shown_as_it_is_printed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("verl", reason="a training is composed with verl")
    (shown,) = (block.text for block in blocks(ROOT / "docs/howto/first_training.md") if block.language == "text")
    words = "train engine=vllm size=7b env=math turntree.train_tasks=128 turntree.val_tasks=1 --check"
    with pytest.raises(SystemExit):
        main(words.split())
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in shown.splitlines() if line not in printed] == []


def test_the_metrics_of_the_first_training_are_logged() -> None:
    page = (ROOT / "docs/howto/first_training.md").read_text(encoding="utf-8")
    named = {*re.findall(r"`(turntree/[a-z_]+)`", page)}
    assert len(named) > 8
    logged = {metric.name for metric in METRICS}
    assert named <= logged
    assert "turntree/tokens_a_step" not in logged
