import fcntl
import os
import stat
import threading
from errno import EACCES, ENOLCK, ENOSPC
from pathlib import Path

import pytest
from machine_speed import patience

from turntree.agents.errors import UsageError
from turntree.agents.evaluation.file import EvalFile
from turntree.agents.files import OneWriter, ensure_writable, keep_apart, whole_file, write_whole


def test_a_file_is_written_with_its_folder_and_over_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "words.txt"
    for content in ("älter", b"newer"):
        write_whole(path, content)
    assert path.read_bytes() == b"newer"
    assert list(path.parent.iterdir()) == [path]


def break_off(path: Path) -> None:
    with whole_file(path) as partial:
        partial.write_text("half")
        raise KeyError


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "half \ud800")
    with pytest.raises(KeyError):
        break_off(path)
    with pytest.raises(IsADirectoryError), whole_file(tmp_path):
        raise AssertionError("a folder is no file")
    ensure_writable(path)
    ensure_writable(tmp_path / "other" / "new")
    assert path.read_text() == "old"
    assert [position for position in tmp_path.rglob("*") if position.is_file()] == [path]


def test_what_is_no_regular_file_is_written_through_and_stays_what_it_was(tmp_path: Path) -> None:
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "words")
    reader.join()
    assert heard == ["words"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(OSError, match="/dev/full") as full:
        write_whole(Path("/dev/full"), "words")
    assert full.value.errno == ENOSPC
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link(there: bool, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link, file = tmp_path / "link", tmp_path / "far" / "file"
    link.symlink_to(file)
    if there:
        file.write_text("old")
    ensure_writable(link)
    write_whole(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_an_evaluation_reads_and_writes_a_regular_file_alone(tmp_path: Path) -> None:
    for path in (Path("/dev/full"), Path("/dev/stdin")):
        with pytest.raises(UsageError, match=f"{path} is not a regular file.* name a regular file"):
            EvalFile(path, {})
    link, file = tmp_path / "link", tmp_path / "file"
    link.symlink_to(file)
    evaluation = EvalFile(link, {})
    evaluation.begin()
    evaluation.close()
    assert link.is_symlink()
    assert file.is_file()
    assert sorted(tmp_path.iterdir()) == [file, link]


def test_inputs_are_never_overwritten_under_any_name(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("rows")
    (tmp_path / "link").symlink_to(file)
    (tmp_path / "hard").hardlink_to(file)
    (tmp_path / "folder").symlink_to(tmp_path)
    for out in (file, tmp_path / "link", tmp_path / "hard", tmp_path / "folder" / ".." / tmp_path.name / file.name):
        for read in (file, str(file), tmp_path, {"data": [str(file)]}):
            with pytest.raises(UsageError, match=r"is an input .* name another output file"):
                keep_apart(out, [read])
    keep_apart(file, [tmp_path], folders=False)
    keep_apart(tmp_path / "new", [tmp_path, file, "no such file", "owner/name", "\0", "x" * 5000, 3, None])


def lock_and_die(folder: Path) -> int:
    # The lock outlives the process in a child that waits for the end of the returned pipe.
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        OneWriter(folder)
        if os.fork() == 0:
            os.close(writing)
            os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    assert os.waitpid(child, 0)[1] == 0
    return writing


def test_a_lock_that_outlives_its_process_is_waited_for_and_one_of_a_living_process_is_not(tmp_path: Path) -> None:
    pipe = lock_and_die(tmp_path)
    with pytest.raises(UsageError, match="is being written by process"):
        OneWriter(tmp_path)
    threading.Timer(0.3, os.close, [pipe]).start()
    lock = OneWriter(tmp_path, inherited=patience(20))
    with pytest.raises(UsageError, match=f"by process {os.getpid()} on .*; wait for it, or go away"):
        OneWriter(tmp_path, inherited=float("inf"), instead="go away")
    lock.close()
    lock.close()
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, caplog):
    def refuse(number: int) -> None:
        def flock(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)

    refuse(ENOLCK)
    OneWriter(tmp_path).close()
    assert f"the file system of {tmp_path} has no locks (No locks available)" in caplog.text
    refuse(EACCES)
    with pytest.raises(PermissionError):
        OneWriter(tmp_path)


def test_a_lock_that_another_machine_left_is_taken_with_a_warning(tmp_path, caplog):
    (tmp_path / ".lock").write_text("process 1 on elsewhere since 2026-01-01 00:00:00+00:00")
    OneWriter(tmp_path).close()
    assert "process 1 on elsewhere since 2026-01-01" in caplog.text
