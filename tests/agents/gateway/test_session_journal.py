import json
import shutil
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from command import Said
from full_disk import files_of_at_most
from gateways import Served, SpokenEngine, gateway_at, said, user
from machine_speed import patience
from spoken_server import MODEL, question, spoken_server

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.record import UNFINISHED, Record, read_records
from turntree.agents.gateway.session_episodes import SessionRecord
from turntree.agents.gateway.session_journal import STOPPED
from turntree.agents.loop.renderer import Renderer
from turntree.envs.failure import FailureKind

TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def served(recording: Served) -> Served:
    return recording


def records(folder: Path) -> list[Record]:
    return [record for file in sorted(folder.glob("episodes/*.jsonl")) for record in read_records(file)]


def left(folder: Path) -> list[Path]:
    return sorted((folder / UNFINISHED).glob("*.turns"))


def killed(folder: Path) -> Path:
    # A copy of the run folder as a killed server leaves it, without the server's lock.
    return Path(shutil.copytree(folder, folder.with_name("killed"), ignore=shutil.ignore_patterns(".*")))


def restarted(folder: Path, engine: SpokenEngine, renderer: Renderer) -> list[Record]:
    # Records after another server has started and stopped.
    with gateway_at(engine, renderer, record=folder, max_context=1024):
        pass
    assert not (folder / UNFINISHED).exists()
    return records(folder)


def branched(served: Served, engine: SpokenEngine) -> None:
    first = served.chat(user("a"), tools=[TOOL], headers={"X-Session-Id": "s", "X-Task-Id": "t/1"})
    engine.say = lambda prompt: '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    called = served.chat(user("a"), said(first), user("b 🙂"), tools=[TOOL])
    engine.say = lambda prompt: "It is noon."
    (call,) = said(called)["tool_calls"]
    output = {"role": "tool", "tool_call_id": call["id"], "content": "12:00"}
    dialogue = [user("a"), said(first), user("b 🙂"), said(called), output]
    served.chat(*dialogue, tools=[TOOL], n=2)
    served.chat(user("a"), said(first), user("something else"), tools=[TOOL])
    served.chat(user("c"), headers={"X-Session-Id": "x"})
    assert len(served.gateway.sessions.live) == 2


def session_and_number(record: Record) -> tuple[str, int]:
    return record.labels["session_id"], record.labels["branch"]


def stopped(episode: Episode) -> Episode:
    engine = FailureKind.ENGINE
    return replace(episode, stop_reason=StopReason.FAILURE, failure=STOPPED, failure_kind=engine, ungraded=())


def test_what_a_killed_server_had_not_ended_is_recorded_by_the_next(tmp_path, engine, renderer, turntree, caplog):
    body = {"model": MODEL, "messages": [user(question(0))]}
    with spoken_server(tmp_path) as server, httpx.Client(base_url=server.url, timeout=patience(60)) as client:
        first = client.post("/chat/completions", json=body)
        body["messages"] += [said(first), user(question(1))]
        text = said(client.post("/chat/completions", json=body))["content"]
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(patience(60))
    view: Said = turntree("view", server.record, "--out", tmp_path / "page.html")
    assert view.status == 2, "no session has ended"
    assert f"{server.record}: 1 unfinished sessions are not shown" in caplog.text
    ((labels, episode),) = restarted(server.record, engine, renderer)
    assert "1 unfinished sessions of a killed server were recorded as failures in" in caplog.text
    assert (labels["session_id"], len(episode.turns)) == (first.headers["x-session-id"], 2)
    assert (episode.messages[-1].content, episode.masked, episode.failure) == (text, True, STOPPED)
    assert turntree("view", server.record, "--out", tmp_path / "page.html").status == 0


def test_they_are_recorded_token_for_token_as_if_the_server_had_ended_them(engine, renderer, run_folder):
    with gateway_at(engine, renderer, record=run_folder, max_context=1024) as served:
        branched(served, engine)
        copy = killed(run_folder)
        for path in left(copy):  # a turn that was being written
            path.write_bytes(path.read_bytes() + path.read_bytes().splitlines()[0][:100])
    assert not (run_folder / UNFINISHED).exists()
    ended = {session_and_number(one): one for one in records(run_folder)}
    found = {session_and_number(one): one for one in restarted(copy, engine, renderer)}
    assert len(ended) == 4
    assert {key: one.episode for key, one in found.items()} == {key: stopped(one.episode) for key, one in ended.items()}
    for key, (labels, _) in found.items():
        assert {**labels, "step": 1, "index": 0} == {**ended[key].labels, "index": 0}
    assert len(restarted(copy, engine, renderer)) == 4, "they are recorded once"


def test_a_session_that_was_recorded_just_before_the_kill_is_recorded_once(served, engine, renderer, run_folder):
    branched(served, engine)
    before = killed(run_folder)
    assert served.client.post("/v1/sessions/s/reward", json={"reward": 1.0}).status_code == 200
    recorded = records(run_folder)
    assert len(left(run_folder)) == 1, "the other session's"
    for path in run_folder.glob("episodes/*"):
        shutil.copy(path, before / "episodes")
    with next(before.glob("episodes/*")).open("a") as file:
        file.write('{"session_id": "cut o')
    found = restarted(before, engine, renderer)
    assert found[: len(recorded)] == recorded
    assert [len(one.episode.turns) for one in found[len(recorded) :]] == [1], "the control"


def test_a_kill_while_they_are_recorded_doubles_none_and_loses_none(served, engine, renderer, run_folder, monkeypatch):
    branched(served, engine)
    copy = killed(run_folder)
    real = Path.unlink

    def unlink(path: Path, **options: Any) -> None:
        if path.suffix == ".turns":
            raise KeyboardInterrupt
        real(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            SessionRecord(copy, "model", {}, renderer.turn_text)
    assert {session_and_number(one)[0] for one in records(copy)} in ({"s"}, {"x"}), (
        "one is recorded, and its file still there"
    )
    assert len(left(copy)) == 2
    assert sorted(map(session_and_number, restarted(copy, engine, renderer))) == [
        ("s", 0),
        ("s", 1),
        ("s", 2),
        ("x", 0),
    ]


def test_the_sessions_of_a_server_that_runs_are_its_own(served, engine, renderer, run_folder):
    first = served.chat(user("a"))
    with gateway_at(engine, renderer, record=run_folder):
        assert len(left(run_folder)) == 1
    name = served.chat(user("a"), said(first), user("b")).headers["x-session-id"]
    assert served.client.post(f"/v1/sessions/{name}/reward", json={"reward": 1.0}).status_code == 200
    ((_, episode),) = records(run_folder)
    assert (len(episode.turns), episode.reward) == (2, 1.0)


def test_a_damaged_file_of_turns_stays_and_is_named(served, engine, renderer, run_folder, caplog):
    branched(served, engine)
    copy = killed(run_folder)
    whole, *_ = sorted(left(copy), key=lambda path: path.stat().st_size)
    for row in ("[1]", '{"session_id": "s"}', json.dumps({**json.loads(whole.read_bytes()), "parent": 7})):
        broken = whole.with_name(f"{whole.name.partition('.')[0]}.{len(left(copy))}.turns")
        broken.write_text(row + "\n")
    with gateway_at(engine, renderer, record=copy):
        assert len(left(copy)) == 3
    assert sum("its file is kept: " in record.getMessage() for record in caplog.records) == 3
    assert len(records(copy)) == 4


def test_turns_that_a_full_disk_did_not_take_are_written_with_the_next(served, engine, renderer, run_folder, caplog):
    with files_of_at_most(10):
        first = served.chat(user("a"))
        assert first.status_code == 200, "the dialogue goes on"
    assert "would be lost if the server were killed" in caplog.text
    assert [path.read_bytes() for path in left(run_folder)] == [b""]
    served.chat(user("a"), said(first), user("b"))
    ((_, episode),) = restarted(killed(run_folder), engine, renderer)
    assert len(episode.turns) == 2


def test_what_a_full_disk_kept_from_the_record_at_the_end_is_recorded_by_the_next(engine, renderer, run_folder, caplog):
    with ExitStack() as full, gateway_at(engine, renderer, record=run_folder) as served:
        for _ in range(4):
            served.client.delete(f"/v1/sessions/{served.chat(user('a')).headers['x-session-id']}")
        (file,) = run_folder.glob("episodes/*")
        served.chat(user("b"))
        before = file.read_bytes()
        full.enter_context(files_of_at_most(len(before) + 50))
    assert "cannot be recorded" in caplog.text
    assert file.read_bytes() == before
    *_, (_, episode) = restarted(run_folder, engine, renderer)
    assert (episode.messages[0].content, episode.failure) == ("b", STOPPED)
