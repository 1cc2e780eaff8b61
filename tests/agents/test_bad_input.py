"""Every command given what it cannot use: one line with what to do, status 2, and every file as it was."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from machine_speed import patience
from recorded_run import write_run

from turntree.agents.cli import main
from turntree.agents.os_errors import in_words
from turntree.agents.whole_file import ensure_writable, whole_file, write_whole

ROW = {"prediction": "#### 4", "gold": "4", "data_source": "gsm8k"}
ARITHMETIC = "turntree/Arithmetic-v0"
SMALL = ("-n", "2", "--max-tokens", "4", "--concurrency", "2")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a recorded run, a file of rows, and files that are neither."""
    write_run(tmp_path / "run", tokenizer=False)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(ROW) + "\n" for _ in range(40)))
    (tmp_path / "notes.txt").write_text("my notes\n")
    (tmp_path / "notes.yaml").write_text("my: notes\n")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.fixture
def turntree(capsys: pytest.CaptureFixture[str], place: Path, tiny_model: Path) -> Any:
    def run(words: tuple[str, ...]) -> tuple[Any, str, str]:
        capsys.readouterr()
        known = {"{at}": str(place), "{model}": str(tiny_model)}
        for name, value in known.items():
            words = tuple(word.replace(name, value) for word in words)
        with pytest.raises(SystemExit) as stopped:
            main(list(words))
        captured = capsys.readouterr()
        return stopped.value.code, captured.out, captured.err

    return run


def assert_one_line(err: str) -> None:
    """Beside the progress of a library that reads weights."""
    lines = [line for line in err.splitlines() if line and not line.lstrip().startswith("Loading weights")]
    assert len(lines) == 1, err
    assert lines[0].startswith("turntree: "), err


def files(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


WRONG: list[tuple[tuple[str, ...], str]] = [
    # an id that is nearly one
    (("check", "turntree/Arithmetik-v0"), f"did you mean {ARITHMETIC!r}?"),
    (("play", "turntree/Arithmetik-v0"), f"did you mean {ARITHMETIC!r}?"),
    (("eval", "turntree/Arithmetik-v0", "--model", "{model}"), f"did you mean {ARITHMETIC!r}?"),
    (("eval", "spec_lr", "--model", "{model}"), "did you mean 'spec_rl'?"),
    (("eval", ARITHMETIC, "--model", "{model}", "--reward", "anwser"), "did you mean 'answer'?"),
    (("bench", "{model}", "turntree/Arithmetik-v0"), f"did you mean {ARITHMETIC!r}?"),
    (("score", "{at}/rows.jsonl", "--reward", "anwser"), "did you mean 'answer'?"),
    (("score", "{at}/rows.jsonl", "--contract", "maht"), "did you mean 'math'?"),
    (("rescore", "{at}/run", "--reward", "anwser"), "did you mean 'answer'?"),
    (("tree", "{at}/run", "--task", "arithmetic/train/1"), "arithmetic/train/0"),
    (("train", "grpo_arithmetic_cp"), "did you mean 'grpo_arithmetic_cpu'?"),
    (("train", "algorithm=gpro", "engine=local"), "did you mean 'grpo'?"),
    # nothing is there
    (("play", "turntree/GSM8K-v0", "--data", "{at}/no.jsonl"), "no.jsonl"),
    (("check", "turntree/GSM8K-v0", "--data", "{at}/no.jsonl"), "no.jsonl"),
    (("eval", "{at}/no.yaml", "--model", "{model}"), "no.yaml'; check the path"),
    (("eval", ARITHMETIC, "--model", "{at}/no"), "is not a model directory"),
    (("bench", "{at}/no", ARITHMETIC), "is not a model directory"),
    (("score", "{at}/no.jsonl"), "no.jsonl'; check the path"),
    (("rescore", "{at}/no"), "episodes/*.jsonl"),
    (("export", "{at}/no"), "no folder of a recorded run"),
    (("view", "{at}/no"), "give the folder of a run"),
    (("tree", "{at}/no"), "give the folder of a run"),
    (("train", "{at}/no.yaml"), "there is no file"),
    (("demo", "--model", "{at}/no", "--out", "{at}/demo"), "config.json"),
    # something else is there
    (("check", "turntree/GSM8K-v0", "--data", "{at}/notes.txt"), "notes.txt"),
    (("play", "turntree/GSM8K-v0", "--data", "{at}/notes.txt"), "notes.txt"),
    (("eval", "turntree/GSM8K-v0", "--model", "{model}", "--data", "{at}/notes.txt"), "notes.txt"),
    (("eval", "{at}/notes.yaml", "--model", "{model}"), "expected a list `suite`"),
    (("eval", ARITHMETIC, "--model", "{model}", *SMALL, "--out", "{at}/notes.txt"), "--restart"),
    (("eval", ARITHMETIC, "--model", "{at}/empty"), "is not a model directory"),
    (("bench", "{at}/empty", ARITHMETIC), "is not a model directory"),
    (("score", "{at}/notes.txt"), "line 1: expected one JSON object"),
    (("score", "{at}/empty"), "is a folder, expected a file"),
    (("rescore", "{at}/notes.txt"), "line 1: expected one JSON object"),
    (("rescore", "{at}/empty"), "episodes/*.jsonl"),
    (("export", "{at}/notes.txt"), "line 1: expected one JSON object"),
    (("view", "{at}/notes.txt"), "line 1: expected one JSON object"),
    (("view", "{at}/empty"), "holds no episodes"),
    (("tree", "{at}/notes.txt"), "line 1: expected one JSON object"),
    (("train", "{at}/notes.yaml"), "unknown key 'my'"),
    (("new", "env", "9lives", "--out", "{at}"), "expected a name like WordGame"),
    # the words of the command line themselves
    (("lst",), "Did you mean 'list'?"),
    (("eval", ARITHMETIC, "--modle", "{model}"), "--model"),
    (("eval", ARITHMETIC, "--model", "{model}", "-n", "two"), "'-n'"),
    (("eval", ARITHMETIC, "--model", "{model}", "--engine", "vlm"), "vllm"),
    (("score",), "argument"),
]


@pytest.mark.parametrize(
    ("words", "says"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_wrong_input_is_one_line_and_writes_nothing(
    turntree: Any, place: Path, words: tuple[str, ...], says: str
) -> None:
    before = files(place)
    status, _, err = turntree(words)
    assert status == 2, err
    assert says in err
    assert_one_line(err)
    assert files(place) == before


WRITERS: dict[str, tuple[str, ...]] = {
    "score": ("score", "{at}/rows.jsonl", "--out"),
    "rescore": ("rescore", "{at}/run", "--contract", "math", "--out"),
    "export": ("export", "{at}/run", "--out"),
    "view": ("view", "{at}/run", "--out"),
    "new env": ("new", "env", "Fine", "--out"),
    "eval": ("eval", ARITHMETIC, "--model", "{model}", *SMALL, "--out"),
    "eval's table": ("eval", ARITHMETIC, "--model", "{model}", *SMALL, "--markdown"),
    "bench": ("bench", "{model}", ARITHMETIC, *SMALL, "--epochs", "1", "--samples", "1", "--out"),
}
"""Commands that write, up to where."""


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("where", ["{at}/notes.txt/below/new", "/proc/turntree/new"])
def test_a_place_that_takes_no_file_is_named(turntree: Any, place: Path, writer: str, where: str) -> None:
    before = files(place)
    status, _, err = turntree((*WRITERS[writer], where))
    assert status == 2, err
    assert_one_line(err)
    assert ("notes.txt" if "notes.txt" in where else "/proc/turntree") in err
    assert "place" in err or "check the path" in err
    assert files(place) == before


def test_a_training_whose_folder_cannot_be_made_is_not_started(turntree: Any, place: Path) -> None:
    before = files(place)
    words = ("actor_rollout_ref.model.path={model}", "turntree.run_dir={at}/notes.txt/run", "turntree.train_tasks=2")
    status, _, err = turntree(("train", "demo", *words))
    assert status == 2, err
    assert_one_line(err)
    assert "notes.txt" in err
    assert files(place) == before


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """What is written beyond ``size`` is refused, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("writer", [name for name in WRITERS if name != "eval"])
@pytest.mark.parametrize("old", [None, "what stood there before\n"])
def test_where_no_space_is_left_stays_what_was_there(turntree: Any, place: Path, writer: str, old: str | None) -> None:
    if old is not None and writer in ("rescore", "new env"):
        pytest.skip("it overwrites nothing")
    target = place / "new"
    if old is not None:
        target.write_text(old)
    before = files(place)
    with files_of_at_most(100):
        status, _, err = turntree((*WRITERS[writer], str(target)))
    assert status == 2, err
    assert_one_line(err)
    assert "large" in err or "is the disk full?" in err
    assert files(place) == before
    assert turntree((*WRITERS[writer], str(target)))[0] == 0  # control: with space it is written
    assert files(place) != before


def test_an_evaluation_without_space_keeps_its_whole_lines(turntree: Any, place: Path) -> None:
    out = place / "episodes.jsonl"
    assert turntree((*WRITERS["eval"], str(out)))[0] == 0
    before = files(place)
    with files_of_at_most(out.stat().st_size + 50):
        status, _, err = turntree((*WRITERS["eval"], str(out), "-n", "4"))
    assert status == 2, err
    assert_one_line(err)
    assert files(place) == before
    assert turntree((*WRITERS["eval"], str(out), "-n", "4"))[0] == 0
    assert len(out.read_bytes().splitlines()) == 4


@pytest.mark.parametrize("writer", ["score", "rescore", "export", "view", "new env", "eval's table", "bench"])
def test_a_command_that_is_interrupted_leaves_nothing_behind(
    turntree: Any, place: Path, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(place)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)  # the last moment: everything is written, nothing in its place
    status, _, err = turntree((*WRITERS[writer], str(place / "new")))
    assert status == 130
    assert "Traceback" not in err
    assert files(place) == before


def test_an_interrupted_training_or_game_has_the_status_of_shells(
    turntree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keyboard:
        def isatty(self) -> bool:
            return False

        def readline(self) -> str:
            raise KeyboardInterrupt

    def interrupted(*_: Any, **__: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Keyboard())
    monkeypatch.setattr("turntree.agents.verl.launch.train", interrupted)
    assert turntree(("play", ARITHMETIC))[0] == 130
    assert turntree(("train", "demo"))[0] == 130


def test_an_interrupted_evaluation_has_whole_lines_and_goes_on(turntree: Any, place: Path, tiny_model: Path) -> None:
    out = place / "episodes.jsonl"
    words = (
        "eval",
        ARITHMETIC,
        "--model",
        str(tiny_model),
        "--max-tokens",
        "8",
        "--concurrency",
        "2",
        "--out",
        str(out),
    )
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "turntree.agents.cli", *words, "-n", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    try:
        until = time.monotonic() + patience(120)
        while process.poll() is None and not (out.exists() and out.read_bytes().count(b"\n") > 2):
            assert time.monotonic() < until, "no episode was written"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=patience(120))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # what its threads were at goes to the error below
            _, err = process.communicate(timeout=patience(60))
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    lines = out.read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") and json.loads(line)["episode"] for line in lines)
    status, _, err = turntree((*words, "-n", str(len(lines) + 2)))
    assert status == 0, err
    assert out.read_bytes().startswith(b"".join(lines))
    assert len(out.read_bytes().splitlines()) >= len(lines) + 2


def test_a_file_takes_its_place_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "table.md"
    write_whole(target, "old")
    with pytest.raises(ZeroDivisionError), whole_file(target) as partial:
        partial.write_text(f"half{1 / 0}" if partial.write_text("half") else "")
    assert files(tmp_path) == {"folder/table.md": b"old"}
    with pytest.raises(IsADirectoryError), whole_file(tmp_path / "folder"):
        raise AssertionError("a folder is no file")
    ensure_writable(target)
    ensure_writable(tmp_path / "other" / "new")
    assert files(tmp_path) == {"folder/table.md": b"old"}


def test_an_error_that_says_enough_is_left_as_it_is() -> None:
    assert in_words(OSError(5, "Input/output error", "disk")) == "[Errno 5] Input/output error: 'disk'"
    assert in_words(PermissionError(13, "Permission denied", "x")).startswith("there is no permission for 'x'")
