import base64
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from turntree.agents.viewer.page import LivePage, live_server


def columns(page: str) -> Any:
    found = re.search(r'id="head">([^<]+)<', page)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))["columns"]


@pytest.fixture
def served(run: Path) -> Iterator[str]:
    with live_server(LivePage([run]), 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def got(url: str, host: str = "") -> str:
    return str(urlopen(Request(url, headers={"Host": host} if host else {}), timeout=60).read().decode())


def test_a_served_page_follows_the_run_and_leaves_out_what_is_being_written(run: Path, served: str) -> None:
    before, page = got(f"{served}stamp"), got(served)
    assert len(columns(page)["reward"]) == 40
    assert got(f"{served}stamp") == before, "nothing has changed"
    file = sorted(run.glob("episodes/*.jsonl"))[-1]
    line = file.read_bytes().splitlines()[0]
    with file.open("ab") as written:
        written.write(line + b"\n" + line[:100])
    assert got(f"{served}stamp") != before
    assert len(columns(got(served))["reward"]) == 41


def test_a_served_page_answers_this_machine_alone_and_nothing_else_of_the_folder(served: str, tmp_path: Path) -> None:
    assert "turntree" in got(served, "localhost:80")
    for url, host in ((served, "evil.example:80"), (f"{served}config.yaml", "")):
        with pytest.raises(HTTPError, match="404"):
            got(url, host)
    assert "No episode has ended yet" in LivePage([tmp_path]).text()


def test_two_runs_are_one_page_with_the_same_tasks_side_by_side(run: Path, turntree: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_bytes(sorted(run.glob("episodes/*.jsonl"))[0].read_bytes())
    output = turntree("view", run, other, "--out", tmp_path / "both.html", "--json").json
    page = (tmp_path / "both.html").read_text()
    assert (output["episodes"], "run and other.jsonl" in page) == (50, True)
    assert columns(page)["run"] == [0] * 40 + [1] * 10
    assert turntree("view", run, other, "--out", other).status == 2, "what is read is not written over"


def test_view_writes_the_page_into_the_folder_of_the_run_and_reads_tokens_with_a_tokenizer(run, turntree, tiny_model):
    output = turntree("view", run, "--json").json
    assert output == {"page": str(run / "view.html"), "episodes": 40, "token_texts": False}
    assert (run / "view.html").stat().st_size > 10_000
    assert turntree("view", run, "--json", "--tokenizer", tiny_model).json["token_texts"]


def test_tree_prints_the_turns_of_a_state_with_counts(run: Path, tiny_model: Path, turntree: Any) -> None:
    status, out, _ = turntree("tree", run, "--tokenizer", tiny_model)
    assert status == 0
    assert "40 of 40 turns started from this state" in out
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
    assert all(parent < position for position, parent in enumerate(tree["parents"]))
    below_root = [count for count, parent in zip(tree["counts"], tree["parents"], strict=True) if parent == 0]
    assert (tree["counts"][0], sum(below_root)) == (40, 40)


def test_a_tokenizer_of_an_unreachable_hub_is_refused_in_one_line(turntree, run, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    result = turntree("view", run, "--tokenizer", "nobody/nothing")
    assert result.status == 2
    assert "cannot be reached (127.0.0.1: Connection refused), and the model is not in the cache" in result.err
    assert result.err.count("\n") == 1
