from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_view_writes_the_page_into_the_folder_of_the_run(run: Path, turntree: Any) -> None:
    told = turntree("view", run, "--json").json
    assert told == {"page": str(run / "view.html"), "episodes": 40, "token_texts": False}
    assert (run / "view.html").stat().st_size > 10_000


def test_view_reads_tokens_with_the_tokenizer_that_is_named(run: Path, tiny_model: Path, turntree: Any) -> None:
    assert turntree("view", run, "--json", "--tokenizer", tiny_model).json["token_texts"]


def test_tree_prints_what_was_said_at_a_state_with_counts(run: Path, tiny_model: Path, turntree: Any) -> None:
    status, out, _ = turntree("tree", run, "--tokenizer", tiny_model)
    assert status == 0
    assert "40 of 40 turns began at this state" in out
    assert "20x 50% call 4" in out


def test_what_all_turns_began_with_is_in_the_tree(run: Path, turntree: Any, tmp_path: Path) -> None:
    line = next(run.glob("episodes/*.jsonl")).read_text().splitlines()[0]
    (tmp_path / "alone.jsonl").write_text(f"{line}\n{line}\n")
    status, out, _ = turntree("tree", tmp_path / "alone.jsonl")
    first = json.loads(line)["episode"]["turns"][0]["completion"]["token_ids"]
    assert status == 0
    assert "2x100%" + "".join(f"⟨{token}⟩" for token in first) in "".join(out.split())


def test_tree_as_json_is_flat_with_parents_before_children(run: Path, turntree: Any) -> None:
    tree = turntree("tree", run, "--json").json
    assert tree["parents"][0] == -1
    assert all(parent < place for place, parent in enumerate(tree["parents"]))
    below_root = [count for count, parent in zip(tree["counts"], tree["parents"], strict=True) if parent == 0]
    assert (tree["counts"][0], sum(below_root)) == (40, 40)


def test_a_tokenizer_of_a_hub_off_line_is_refused_in_one_line(
    turntree: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    said = turntree("view", run, "--tokenizer", "nobody/nothing")
    assert said.status == 2
    assert "cannot be reached (127.0.0.1: Connection refused), and it is not in the cache" in said.err
    assert said.err.count("\n") == 1
