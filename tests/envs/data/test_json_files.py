"""Files of JSON as users have them: with marks, in UTF-16, with half of a surrogate."""

import json
import os
from pathlib import Path

import pytest

from turntree.envs import DataError
from turntree.envs.data import json_files
from turntree.envs.data.json_files import json_lines, parse_json, read_text
from turntree.envs.data.rows import find_rows
from turntree.envs.lookup.documents import read_corpus
from turntree.envs.service.database import read_tables

ENCODINGS = ["utf-8", "utf-8-sig", "utf-16"]
ROWS = [{"text": "naïve \N{LINE SEPARATOR} 世界 👍"}, {"text": "two"}]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rows_are_read_whatever_mark_their_file_begins_with(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes("\r\n\r\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode(encoding))
    rows = [*find_rows(path, split="x").read()]
    assert [(row.where, row.fields) for row in rows] == [(f"{path}:1", ROWS[0]), (f"{path}:3", ROWS[1])]
    (tmp_path / "a.txt").write_bytes("naïve\n".encode(encoding))
    assert read_text(tmp_path / "a.txt") == "naïve\n"


def test_half_of_a_surrogate_is_refused_with_file_and_line_where_it_is_a_task(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    whole = rb'{"text": "\ud83d\ude42", "more": "\\ud800"}'
    for half in (rb'{"text": "a \uD83D b"}', rb'{"more": [{"\udc00": 1}]}', b'{"text": "\xed\xa0\x80"}'):
        path.write_bytes(whole + b"\n" + half + b"\n")
        with pytest.raises(DataError, match=r"a\.jsonl:2: .*(half of a surrogate|bad JSON)"):
            [*find_rows(path, split="x").read()]
        assert len([*json_lines(path, lambda number, said: ValueError(said))]) == 2  # a policy may have written it
    path.write_bytes(whole + b'\n{"text": "\\udfff"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: half of a surrogate"):
        read_corpus(path)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_tables_of_a_service_and_texts_of_a_corpus_may_have_a_mark(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "users.json").write_bytes(json.dumps({"ada": {"name": "Ada"}}).encode(encoding))
    tables = read_tables(tmp_path, "shop", ("users",))
    assert tables.records == {"users": {"ada": {"name": "Ada"}}}
    (tmp_path / "users.json").write_bytes(rb'{"ada": {"name": "\ud800"}}')
    with pytest.raises(DataError, match=r"users\.json, key 'ada': half of a surrogate"):
        read_tables(tmp_path, "shop", ("users",))


def test_a_mark_that_is_not_taken_away_would_be_noticed(tmp_path: Path) -> None:
    """The control: the same line with a mark in its middle."""
    path = tmp_path / "a.jsonl"
    for line, got in (
        ("\ufeff{}".encode(), "bad JSON"),
        (b"[1]", "list"),
        (b'{"n": "\xff"}', "bad JSON"),
        (b'{"n": ', "bad"),
    ):
        path.write_bytes(b'{"text": "a"}\n' + line + b"\n")
        with pytest.raises(DataError, match=rf"a\.jsonl:2: expected one JSON object a line, got {got}"):
            [*find_rows(path, split="x").read()]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_lines_beyond_the_bounds_are_refused_with_their_number(tmp_path, encoding: str, monkeypatch) -> None:
    monkeypatch.setattr(json_files, "MOST_BYTES", 1000)
    monkeypatch.setattr(json_files, "_MOST_VALUES", 300)
    path = tmp_path / "a.jsonl"
    deep = '{"a": ' + "[" * 199 + "]" * 199 + "}"
    for line, said in (
        ('{"a": "' + "x" * 1000 + '"}', "at most 1,000 bytes a line"),
        ('{"a": [' + "1," * 400 + "1]}", "more than 300 values"),
        (deep.replace("[]", "[[]]"), "nested deeper than 200"),
        ("[" * 900, "bad JSON"),
    ):
        path.write_bytes(f'{{"a": 1}}\n{line}\n'.encode(encoding))
        with pytest.raises(ValueError, match=rf"^2: .*{said}"):
            [*json_lines(path, lambda number, told: ValueError(f"{number}: {told}"))]
    path.write_bytes(deep.encode(encoding))
    assert [number for number, _ in json_lines(path, lambda *_: ValueError())] == [1]


def test_depth_beyond_any_stack_is_no_json() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * 201 + "]" * 201):
        with pytest.raises(ValueError, match="nested deeper than 200"):
            parse_json(text)


def test_only_regular_files_are_read_and_nothing_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(OSError, match=r"a\.jsonl is no regular file"):
        [*find_rows(tmp_path / "a.jsonl", split="x").read()]
    with pytest.raises(IsADirectoryError):
        read_text(tmp_path)
