from __future__ import annotations

from pathlib import Path

import pytest

from turntree.agents.files import ensure_writable, whole_file, write_whole


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
    assert [place for place in tmp_path.rglob("*") if place.is_file()] == [path]
