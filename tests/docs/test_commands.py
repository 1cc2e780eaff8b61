"""The commands of the pages run as they stand, page by page, with a small model under the names that they use."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import chatml_tokenizer
from machine_speed import patience
from pages import PAGES, ROOT, commands
from tables import table
from tiny_llama import save_chat_llama

NOT_RUN: dict[str, str] = table(__file__, "not_run_on_pages")
"""Patterns of commands that do not run here, and why."""
READ_DATA: dict[str, str] = table(__file__, "read_data")
"""Patterns of commands that read a data set, and which."""
SMALLER: dict[str, str] = table(__file__, "smaller")
"""What is appended to a command that matches: it runs as it stands, with less to do."""
BEFORE: dict[str, list[str]] = table(__file__, "before")
"""Commands that come before those of a page."""
PATTERNS = [*NOT_RUN, *READ_DATA, *SMALLER]


def found(patterns: dict[str, str], line: str) -> str | None:
    """What belongs to the first pattern that a command matches."""
    return next((value for pattern, value in patterns.items() if fnmatchcase(line, pattern)), None)


def to_run(page: Path) -> list[str]:
    """What is run of a page."""
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
    """A folder with what the commands name."""
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template += (  # as Qwen3's reads it
        "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
        "<think>\n\n</think>\n\n{% endif %}"
    )
    save_chat_llama(tmp_path / "DIR", tokenizer, spread=20.0, positions=4096)
    for name in ("BEFORE", "AFTER", "MODEL", "models/qwen"):
        shutil.copytree(tmp_path / "DIR", tmp_path / name)
    for name, text in table(__file__, "files").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    rows = [{"question": f"What is {n} + 1?", "answer": f"It is one more. #### {n + 1}"} for n in range(200)]
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    page = (ROOT / "docs/rewards.md").read_text(encoding="utf-8")
    (tmp_path / "answers.jsonl").write_text(page.partition("```json\n")[2].partition("```")[0], encoding="utf-8")
    return tmp_path


class Shell:
    """Runs lines in a folder; what serves stays until the next that does, or the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self.serving: subprocess.Popen[str] | None = None

    def run(self, line: str) -> str | None:
        """What a command that failed wrote."""
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
        """Start what serves, and wait until it writes where."""
        out = self.folder / "served.txt"
        with out.open("w") as file:
            words = ["bash", "-c", f"exec {line}"]
            serving = subprocess.Popen(words, cwd=self.folder, env=self.env, stdout=file, stderr=file, text=True)
        while "http://" not in out.read_text():
            assert serving.poll() is None, out.read_text()
            time.sleep(0.2)
        return serving

    def end(self, serving: subprocess.Popen[str] | None) -> None:
        """Stop what serves."""
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
