import errno
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from combinations import every_third
from command import Said
from full_disk import files_of_at_most
from machine_speed import patience
from recorded_run import write_run
from tables import table

from turntree.agents.errors import explain_os_error

Run = Callable[[Sequence[str]], Said]
ROW = {"prediction": "#### 4", "gold": "4", "data_source": "gsm8k"}
TASK = {"question": "How many?", "answer": "Four. #### 4"}
INTERRUPTED = Mock(side_effect=KeyboardInterrupt)
ARITHMETIC = "turntree/Arithmetic-v0"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("recorded") / "run", tokenizer=False)


@pytest.fixture
def folder(recorded: Path, tmp_path: Path) -> Path:
    shutil.copytree(recorded, tmp_path / "run")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(ROW) + "\n" for _ in range(40)))
    (tmp_path / "notes.txt").write_text("my notes\n")
    (tmp_path / "notes.yaml").write_text("my: notes\n")
    (tmp_path / "none.jsonl").write_text("\n")
    (tmp_path / "unknown.jsonl").write_text(json.dumps({**ROW, "data_source": "mine"}) + "\n")
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(TASK) + "\n" for _ in range(2)))
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.fixture
def run(turntree: Callable[..., Said], folder: Path, tiny_model: Path) -> Run:
    return lambda words: turntree(
        *(word.replace("{at}", str(folder)).replace("{model}", str(tiny_model)) for word in words)
    )


@pytest.fixture
def refused(run: Run, folder: Path) -> Run:
    def refuse(words: Sequence[str]) -> Said:
        before = files(folder)
        result = run(words)
        assert result.status == 2, result.err
        lines = [line for line in result.err.splitlines() if line and not line.lstrip().startswith("Loading weights")]
        assert len(lines) == 1, result.err
        assert lines[0].startswith("turntree: "), result.err
        assert files(folder) == before
        return result

    return refuse


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


WRONG = [
    line.split(" ;; ")
    for line in Path(__file__).with_name("bad_input.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


@pytest.mark.parametrize(("command", "says"), WRONG)
def test_wrong_input_is_one_line_and_writes_nothing(refused: Run, folder: Path, command: str, says: str) -> None:
    assert says.replace("{at}", str(folder)) in refused(shlex.split(command)).err


READERS: dict[str, list[str]] = table(__file__, "readers")


@pytest.mark.parametrize(("reader", "text", "says"), table(__file__, "other_files"))
def test_a_file_of_another_format_is_refused(refused, folder, reader, text, says):
    for name in ("given.yaml", "given.jsonl"):
        (folder / name).write_text(text)
    assert says in refused(READERS[reader]).err


WRITERS: dict[str, list[str]] = table(__file__, "writers")


@pytest.mark.parametrize(("writer", "where"), every_third(WRITERS, ["{at}/notes.txt/below/new", "/proc/turntree/new"]))
def test_an_unwritable_path_is_named(refused: Run, writer: str, where: str) -> None:
    err = refused((*WRITERS[writer], where)).err
    assert ("notes.txt" if "notes.txt" in where else "/proc/turntree") in err
    assert "path" in err


@pytest.mark.parametrize(("writer", "old"), every_third([name for name in WRITERS if name != "eval"], [False, True]))
def test_on_a_full_disk_the_old_file_stays(run, refused, folder, writer, old):
    target = folder / "new"
    if old and writer not in ("rescore", "new env"):  # they overwrite nothing
        target.write_text("what stood there before\n")
    before = files(folder)
    words = (*WRITERS[writer], str(target))
    with files_of_at_most(100):
        err = refused(words).err
    assert "exceeds the file size limit" in err
    assert run(words).status == 0  # control: with space it is written
    assert files(folder) != before


def test_an_evaluation_without_space_keeps_its_whole_lines(run: Run, refused: Run, folder: Path) -> None:
    out = folder / "episodes.jsonl"
    words = (*WRITERS["eval"], str(out))
    assert run(words).status == 0
    with files_of_at_most(out.stat().st_size + 50):
        refused((*words, "-n", "4"))
    assert run((*words, "-n", "4")).status == 0
    assert len(out.read_bytes().splitlines()) == 4


INTERRUPTIBLE = ["score", "rescore", "export", "parquet", "view", "new env", "eval's table", "bench"]


@pytest.mark.parametrize("writer", INTERRUPTIBLE)
def test_a_command_that_is_interrupted_leaves_nothing_behind(run, folder, writer, monkeypatch):
    before = files(folder)
    monkeypatch.setattr(Path, "replace", INTERRUPTED)  # the last moment: everything is written, nothing in its folder
    result = run((*WRITERS[writer], str(folder / "new")))
    assert result.status == 130
    assert "Traceback" not in result.err
    assert files(folder) == before


def test_an_interrupted_training_or_game_has_the_status_of_shells(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False, readline=INTERRUPTED))
    monkeypatch.setattr("turntree.agents.verl.launch.train", INTERRUPTED)
    assert run(("play", ARITHMETIC)).status == 130
    assert run(("train", "demo")).status == 130


def test_an_interrupted_evaluation_has_whole_lines_and_resumes(run: Run, folder: Path, tiny_model: Path) -> None:
    out = folder / "episodes.jsonl"
    small = ("--max-tokens", "8", "--concurrency", "2")
    words = ("eval", ARITHMETIC, "--model", str(tiny_model), *small, "--out", str(out))
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
    assert f"interrupted: {len(lines)} of 1000000 episodes in {out}; run the same command again to resume" in err
    result = run((*words, "-n", str(len(lines) + 2)))
    assert result.status == 0, result.err
    assert out.read_bytes().startswith(b"".join(lines))
    assert len(out.read_bytes().splitlines()) >= len(lines) + 2


def test_a_self_explanatory_error_is_left_unchanged() -> None:
    assert explain_os_error(OSError(errno.EADDRINUSE, "Address already in use")).startswith(
        "the port is in use; choose another"
    )
    assert explain_os_error(OSError(5, "Input/output error", "disk")) == "[Errno 5] Input/output error: 'disk'"
    assert explain_os_error(PermissionError(13, "Permission denied", "x")).startswith("permission denied for 'x'")
