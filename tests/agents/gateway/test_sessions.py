import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import httpx
import pytest
from full_disk import files_of_at_most
from gateways import Served, SpokenEngine, gateway_at, said, user
from machine_speed import eventually
from tables import table

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.episodes.dialogue import dialogue_states
from turntree.agents.episodes.episode import StopReason
from turntree.agents.episodes.record import Record, read_records
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.gateway import session_paths
from turntree.agents.gateway import sessions as sessions_module
from turntree.agents.scoring.scorer import Scorer
from turntree.rewards import registry

TOOL = {
    "type": "function",
    "function": {"name": "calculator", "parameters": {"type": "object", "properties": {"expression": {}}}},
}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 + 34"}}\n</tool_call>'
Messages = list[dict[str, Any]]


@pytest.fixture
def served(recording: Served) -> Served:
    return recording


def session_of(answer: httpx.Response) -> str:
    return answer.headers["x-session-id"]


def records(folder: Path) -> list[Record]:
    return [record for file in sorted(folder.glob("episodes/*.jsonl")) for record in read_records(file)]


def scored(served: Served, session: str, **body: Any) -> dict[str, Any]:
    answer = served.client.post(f"/v1/sessions/{session}/reward", json=body or {"reward": 1.0})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_dialogue_is_one_session_whose_tokens_are_never_rendered_again(served, engine, run_folder):
    first = served.chat(user("2 + 2?"))
    second = served.chat(user("2 + 2?"), said(first), user("And 3 + 3?"))
    assert session_of(first) == session_of(second)
    before, after = (request.prompt_ids for request in engine.asked)
    sampled = tuple(after[len(before) :])
    assert after[: len(before)] == before
    turn = served.gateway.sessions.live[session_of(first)].nodes[0].turn.completion.token_ids
    assert sampled[: len(turn)] == turn
    assert scored(served, session_of(first)) == {
        **{"id": session_of(first), "episodes": 1, "reward": 1.0, "rewards": {}, "failure": ""}
    }
    ((labels, episode),) = records(run_folder)
    assert TokenView.of(episode).mask.count(1) == sum(len(turn.completion.token_ids) for turn in episode.turns)
    assert [str(message.role) for message in episode.messages] == ["user", "assistant", "user", "assistant"]
    assert (episode.reward, episode.masked) == (1.0, False)
    assert labels["session_id"] == session_of(first)
    assert (labels["branch"], labels["origin"]) == (0, "began")


def test_tokens_that_no_tokenizer_would_give_come_back_as_they_were_sampled(renderer, chatml, tiny_model, run_folder):
    # An untrained model samples tokens into which its text is never tokenised.
    config = LocalEngineConfig(max_batch=4, max_context=512, threads=1)
    with (
        LocalEngine.from_pretrained(tiny_model, config=config) as engine,
        gateway_at(engine, renderer, max_context=512, record=run_folder) as served,
    ):
        for stop in (None, "e"):
            messages, name = [user("What is 12 + 34?")], ""
            for number in range(3):
                answer = served.chat(*messages, max_tokens=20, seed=number, stop=stop)
                assert name in ("", session_of(answer))
                name = session_of(answer)
                messages += [said(answer), user("Go on.")]
            scored(served, name)
    again = 0
    for _, episode in records(run_folder):
        view = TokenView.of(episode)
        assert len(episode.turns) == 3
        again += sum(
            list(turn.completion.token_ids) != chatml(turn.text, add_special_tokens=False)["input_ids"]
            for turn in episode.turns
        )
        ids = renderer.stop_token_ids[0]
        for turn, following in zip(episode.turns, episode.turns[1:], strict=False):
            rest = following.prompt_ids[len(turn.prompt_ids) + len(turn.completion.token_ids) :]
            assert (turn.completion.token_ids[-1] == ids) != (rest[0] == ids)  # the turn ends once
        assert len(view.response_ids) == len(view.mask)
    assert again > 0


def test_dialogue_states_are_those_of_the_record_with_task_and_tool_history(served, engine, run_folder):
    engine.say = lambda prompt: CALL
    headers = {"X-Task-Id": "sums/7"}
    messages: Messages = [user("12 + 34?")]
    first = served.chat(*messages, tools=[TOOL], headers=headers)
    (call,) = said(first)["tool_calls"]
    messages += [said(first), {"role": "tool", "tool_call_id": call["id"], "content": "46"}]
    engine.say = lambda prompt: "46"
    second = served.chat(*messages, tools=[TOOL], headers=headers)
    assert session_of(first) == session_of(second)
    scored(served, session_of(first))
    ((_, episode),) = records(run_folder)
    assert [request.state for request in engine.asked] == dialogue_states(episode)
    assert (episode.task.id, engine.asked[0].state.task) == ("sums/7", "sums/7")
    assert "calculator" in engine.asked[1].state.tools
    assert episode.messages[1].tool_calls[0].name == "calculator"
    assert episode.messages[2].content == "46"


def test_a_changed_message_opens_a_branch_that_shares_the_earlier_turns(served, engine, run_folder):
    first = served.chat(user("a"))
    second = served.chat(user("a"), said(first), user("b"))
    changed = served.chat(user("a"), said(first), user("c"))
    edited = served.chat(user("a"), {"role": "assistant", "content": "five"}, user("b"), headers=named(first))
    assert session_of(first) == session_of(second) == session_of(changed) == session_of(edited)
    assert "five" in engine.tokenizer.decode(list(engine.asked[-1].prompt_ids))
    assert scored(served, session_of(first))["episodes"] == 3
    found = records(run_folder)
    seen = [(one.labels["branch"], one.labels["branch_of"], one.labels["shared_turns"]) for one in found]
    assert seen == [(0, None, 0), (1, 0, 1), (2, None, 0)]
    assert [one.labels["origin"] for one in found] == ["began", "changed", "changed"]
    for _, episode in found:
        TokenView.of(episode)
    assert found[0].episode.turns[0].completion == found[1].episode.turns[0].completion


def test_the_same_messages_again_and_several_choices_are_branches(served, engine, run_folder):
    first = served.chat(user("a"), n=2, headers={"X-Session-Id": "mine"})
    served.chat(user("a"), headers=named(first))
    served.chat(user("a"), said(first, 1), user("b"), headers=named(first))
    assert scored(served, "mine")["episodes"] == 3
    assert [one.labels["origin"] for one in records(run_folder)] == ["sampled again", "sampled again", "began"]


def named(answer: httpx.Response) -> dict[str, str]:
    return {"X-Session-Id": session_of(answer)}


def test_equal_dialogues_of_several_clients_are_not_mixed(served: Served, engine: SpokenEngine):
    # Nothing distinguishes them, so each request continues a dialogue that no other request has continued.
    engine.say = lambda prompt: "four"
    with ThreadPoolExecutor(6) as clients:
        firsts = [*clients.map(lambda _: served.chat(user("a")), range(6))]
        assert len({session_of(one) for one in firsts}) == 6
        engine.held = True
        asked = [clients.submit(served.chat, user("a"), said(firsts[0]), user("b")) for _ in range(6)]
        eventually(lambda: engine.live == 6)
        engine.held = False
        seconds = [one.result() for one in asked]
    assert {session_of(one) for one in seconds} == {session_of(one) for one in firsts}


def test_a_dialogue_taken_for_that_of_another_client_is_noticed(served: Served, engine: SpokenEngine, monkeypatch: Any):
    monkeypatch.setattr(
        sessions_module.Sessions, "_continued_node", lambda self, key, *_: next(iter(self._by_key.get(key, ())), None)
    )
    with pytest.raises(AssertionError):
        test_equal_dialogues_of_several_clients_are_not_mixed(served, engine)


def test_calls_tell_equal_dialogues_apart(served: Served, engine: SpokenEngine):
    engine.say = lambda prompt: CALL
    firsts = [served.chat(user("a"), tools=[TOOL]) for _ in range(3)]
    for first in reversed(firsts):
        call = said(first)["tool_calls"][0]["id"]
        answer = served.chat(
            user("a"), said(first), {"role": "tool", "tool_call_id": call, "content": "1"}, tools=[TOOL]
        )
        assert session_of(answer) == session_of(first)


def test_tasks_and_named_sessions_keep_equal_dialogues_apart(served: Served, engine: SpokenEngine):
    for header in ("X-Task-Id", "X-Session-Id"):
        firsts = {name: served.chat(user(header), headers={header: name}) for name in ("x", "y")}
        for name in ("y", "x"):
            answer = served.chat(user(header), said(firsts[name]), user("b"), headers={header: name})
            assert session_of(answer) == session_of(firsts[name])
    wrong = served.chat(user("a"), headers={"X-Session-Id": "x", "X-Task-Id": "other"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "X-Task-Id")


def test_other_tools_open_a_branch(served: Served, engine: SpokenEngine):
    first = served.chat(user("a"), tools=[TOOL], headers={"X-Session-Id": "s"})
    served.chat(user("a"), said(first), user("b"), headers={"X-Session-Id": "s"})
    nodes = served.gateway.sessions.live["s"].nodes
    assert [node.parent for node in nodes] == [None, None]
    assert [str(node.origin) for node in nodes] == ["began", "changed"]


def test_a_turn_that_was_given_up_is_in_no_session(served: Served, engine: SpokenEngine, run_folder: Path):
    engine.held = True
    with pytest.raises(httpx.ReadTimeout):
        served.client.post(
            "/v1/chat/completions",
            json={"model": "tiny", "messages": [user("a")]},
            headers={"X-Session-Id": "s"},
            timeout=0.3,
        )
    served.idle()
    eventually(lambda: "s" not in served.gateway.sessions.live)
    engine.held = False
    assert served.client.get("/v1/sessions/s").status_code == 404
    assert records(run_folder) == []


@pytest.mark.parametrize(("body", "reward", "parts"), table(__file__, "verdicts"))
def test_a_session_is_scored_by_a_figure_or_by_name(served, engine, run_folder, body, reward, parts):
    engine.say = lambda prompt: "#### 46"
    answer = scored(served, session_of(served.chat(user("12 + 34?"))), **body)
    assert (answer["reward"], answer["rewards"]) == (reward, parts)
    ((_, episode),) = records(run_folder)
    assert (episode.reward, episode.rewards, episode.masked) == (reward, parts, False)


def test_a_session_without_a_verdict_is_ungraded_and_never_zero(served, engine, run_folder):
    name = session_of(served.chat(user("a")))
    assert served.client.delete(f"/v1/sessions/{name}").json() == {"id": name, "episodes": 1}
    ((_, episode),) = records(run_folder)
    assert (episode.masked, episode.ungraded) == (True, ("session",))
    scored(served, session_of(served.chat(user("a"), max_tokens=2)))
    assert records(run_folder)[-1].episode.stop_reason is StopReason.MAX_TOKENS


def test_a_program_or_an_engine_that_failed_masks_the_session(served: Served, engine: SpokenEngine, run_folder: Path):
    first = served.chat(user("a"))
    answer = scored(served, session_of(first), failure="the tool's container\nis gone")
    assert (answer["reward"], answer["failure"]) == (None, "the tool's container is gone")
    second = served.chat(user("a"))
    engine.error = RuntimeError("it broke")
    assert served.chat(user("a"), said(second), user("b")).status_code == 500
    assert scored(served, session_of(second))["reward"] is None
    engine.error = None
    third = served.chat(user("c"))
    engine.error = RuntimeError("it broke")
    served.chat(user("c"), said(third), user("b"))
    engine.error = None
    served.chat(user("c"), said(third), user("b"))
    assert scored(served, session_of(third))["reward"] == 1.0
    assert [episode.reward for _, episode in records(run_folder)] == [0.0, 0.0, 1.0]
    failures = [(str(e.stop_reason), str(e.failure_kind)) for _, e in records(run_folder)]
    assert failures == [("failure", "environment"), ("failure", "engine"), ("done", "None")]


@pytest.mark.parametrize(("body", "param"), table(__file__, "no_verdicts"))
def test_an_invalid_verdict_is_refused_and_the_session_stays_live(served: Served, body: Any, param: str):
    first = served.chat(user("a"))
    answer = served.client.post(f"/v1/sessions/{session_of(first)}/reward", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert session_of(served.chat(user("a"), said(first), user("b"))) == session_of(first)


@pytest.fixture
def evil_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_rewards: None) -> Iterator[str]:
    name = "evil_of_this_test"
    (tmp_path / f"{name}.py").write_text("from turntree.rewards import reward\nreward('x')(lambda sample: 0.5)\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_verdict_imports_nothing(served: Served, evil_module: str, monkeypatch: pytest.MonkeyPatch):
    entry = EntryPoint(name="plugged", value=f"{evil_module}:x", group=registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: [entry])
    name = session_of(served.chat(user("a")))
    for by in (f"{evil_module}:x", f"{evil_module}:gone", f"{evil_module}:", "plugged", f"{evil_module}:answer", ":x"):
        answer = served.client.post(f"/v1/sessions/{name}/reward", json={"by": {by: 1.0}})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "by")
        assert evil_module not in sys.modules
    assert scored(served, name)["reward"] == 1.0


def test_what_the_operator_imports_a_verdict_may_name(served: Served, evil_module: str):
    name = session_of(served.chat(user("a")))
    Scorer({f"{evil_module}:x": 0})
    assert evil_module in sys.modules
    assert scored(served, name, by={"x": 1.0})["reward"] == 0.5


def test_an_ended_session_is_named_and_not_gone_on_with(served: Served, engine: SpokenEngine):
    first = served.chat(user("a"), headers={"X-Session-Id": "s"})
    assert served.client.get("/v1/sessions/s").json()["turns"] == 1
    scored(served, "s")
    for answer in (
        served.chat(user("a"), headers={"X-Session-Id": "s"}),
        served.client.post("/v1/sessions/s/reward", json={"reward": 0}),
        served.client.delete("/v1/sessions/s"),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_ended")
    assert served.client.post("/v1/sessions/other/reward", json={"reward": 0}).status_code == 404
    assert session_of(served.chat(user("a"), said(first), user("b"))) != "s"


def test_a_session_in_use_is_not_ended(served: Served, engine: SpokenEngine):
    served.chat(user("a"), headers={"X-Session-Id": "s"})
    engine.held = True
    with ThreadPoolExecutor(1) as other:
        asked = other.submit(served.chat, user("b"), headers={"X-Session-Id": "s"})
        eventually(lambda: engine.live == 1)
        assert served.client.post("/v1/sessions/s/reward", json={"reward": 0}).json()["error"]["code"] == "running"
        engine.held = False
        assert asked.result().status_code == 200
    assert scored(served, "s")["episodes"] == 2


def test_a_verdict_that_a_full_disk_does_not_take_is_given_again_and_nothing_is_lost(served, run_folder):
    for name in ("first", "s"):
        first = served.chat(user("a"), n=2, headers={"X-Session-Id": name, "X-Task-Id": "t"})
        if name == "first":
            scored(served, "first")
    (file,) = run_folder.glob("episodes/*")
    before, path = file.read_bytes(), "/v1/sessions/s"
    for size in (len(before) + 50, 3 * len(before) // 2 + 50):  # in the first and in the second of its two lines
        with files_of_at_most(size):
            for answer in (
                served.client.post(f"{path}/reward", json={"failure": "the container died"}),
                served.client.post(f"{path}/reward", json={"reward": 0.5}),
                served.client.delete(path),
            ):
                error = answer.json()["error"]
                assert (answer.status_code, error["code"], error["type"]) == (507, "not_recorded", "server_error")
                assert str(file) in error["message"]
                assert "exceeds the file size limit" in error["message"]
        assert file.read_bytes() == before
    assert served.client.get(path).json()["turns"] == 2
    assert session_of(served.chat(user("a"), said(first), user("b"))) == "s", "it goes on"
    assert scored(served, "s", reward=0.5)["reward"] == 0.5
    assert 'turntree_sessions_ended_total{how="scored"} 2' in served.client.get("/metrics").text
    scored(served, session_of(served.chat(user("c"))))
    found = [(one.labels["session_id"], one.labels["session"], one.episode.reward) for one in records(run_folder)]
    assert found[:-1] == [("first", 0, 1.0), ("first", 1, 1.0), ("s", 2, 0.5), ("s", 3, 0.5)]
    assert len(found) == 5


def test_on_a_full_disk_no_session_is_dropped_for_a_further_one(engine, renderer, run_folder):
    with gateway_at(engine, renderer, record=run_folder, max_sessions=2) as served:
        firsts = [served.chat(user("a")) for _ in range(2)]
        with files_of_at_most(100):
            refused = served.chat(user("a"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (507, "not_recorded")
            went_on = served.chat(user("a"), said(firsts[0]), user("b"))
            assert session_of(went_on) in {session_of(first) for first in firsts}
        assert session_of(served.chat(user("a"))) not in {session_of(first) for first in firsts}
    assert sum(len(one.episode.turns) for one in records(run_folder)) == 4


def test_a_verdict_that_cannot_be_computed_leaves_the_session(served, run_folder, monkeypatch):
    async def broken(*_: Any) -> Any:
        raise RuntimeError("no judge")

    name = session_of(served.chat(user("a")))
    with monkeypatch.context() as patched:
        patched.setattr(session_paths, "judge_episodes", broken)
        answer = served.client.post(f"/v1/sessions/{name}/reward", json={"by": {"few_turns": 1}})
        assert answer.status_code == 500
    assert scored(served, name)["reward"] == 1.0


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 201, "a\tb"])
def test_a_name_that_is_none_is_refused(served: Served, name: str):
    for header in ("X-Session-Id", "X-Task-Id"):
        answer = served.chat(user("a"), headers={header: name.encode()})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, header)


def test_sessions_are_bounded_and_those_that_end_are_recorded(engine, renderer, run_folder):
    with gateway_at(engine, renderer, record=run_folder, max_sessions=3) as served:
        names = [session_of(served.chat(user("a"))) for _ in range(8)]
        assert [*served.gateway.sessions.live] == names[-3:]
        assert [one.labels["session_id"] for one in records(run_folder)] == names[:5]
    assert [one.labels["session_id"] for one in records(run_folder)] == names
    with gateway_at(engine, renderer, max_sessions=1) as served:
        first = served.chat(user("a"))
        assert session_of(served.chat(user("a"), said(first), user("b"))) == session_of(first), "it needs no room"
    with gateway_at(engine, renderer, record=run_folder, session_seconds=0.05) as served:
        first = session_of(served.chat(user("a")))
        eventually(lambda: served.chat(user("b")) and first not in served.gateway.sessions.live)
        text = served.client.get("/metrics").text
        assert 'turntree_sessions_ended_total{how="idle"}' in text
    steps = [one.labels["step"] for one in records(run_folder)]
    assert steps == sorted(steps)
    assert {*steps} == {1, 2}
    with gateway_at(engine, renderer, record=run_folder):
        pass
    assert len([*run_folder.glob("episodes/*")]) == 2


def test_recorded_sessions_are_viewed_rescored_and_exported(turntree, tiny_model, renderer, run_folder):
    config = LocalEngineConfig(max_batch=4, max_context=256, threads=1)
    with (
        LocalEngine.from_pretrained(tiny_model, config=config) as engine,
        gateway_at(engine, renderer, record=run_folder, model=str(tiny_model)) as served,
    ):
        for seed in range(3):
            body = {"model": str(tiny_model), "max_tokens": 8, "seed": seed}
            messages = [user("12 + 34?")]
            answer = served.client.post("/v1/chat/completions", json={**body, "messages": messages})
            messages += [said(answer), user("Sure?")]
            served.client.post("/v1/chat/completions", json={**body, "messages": messages})
            scored(served, session_of(answer), reward=seed / 2)
    assert turntree("view", run_folder, "--out", run_folder / "page.html").status == 0
    assert (run_folder / "page.html").stat().st_size > 1000
    output = turntree("rescore", run_folder, "--reward", "few_turns")
    assert output.status == 0, output.err
    exported = turntree("export", run_folder)
    assert exported.status == 0, exported.err
    assert "3 episodes of 1 states" in exported.out
    assert turntree("export", run_folder, "--to", "messages").status == 0
    rows = [json.loads(line) for line in (run_folder / "messages.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [0.0, 0.5, 1.0]
    assert all([one["role"] for one in row["messages"]] == ["user", "assistant"] * 2 for row in rows)
    assert turntree("tree", run_folder, "--turn", "1").status == 0


PLAIN = r"""{"b": [1, 1.5, {"deep": 1e3}], "a": 2.0,
    "text": "é \u00fc \ud83d\ude42", "yes": true, "big": 9007199254740993}"""
WRITTEN = PLAIN.replace(r"\ude42", r"\ude42 \ud800")
AGAIN = [
    WRITTEN,
    r"""{"yes":true,"a":2,"b":[1.0,15e-1,{"deep":1000}],"big":9007199254740993,"text":"\u00e9 ü 🙂 \uD800"}""",
    r"""{ "a" : 2e0, "b":[1,1.50,{"deep":1000.0}],
    "text":"é ü \uD83D\uDE42 \ud800","big":9007199254740993,"yes":true}""",
]


def called(served: Served, engine: SpokenEngine, sampled: str, arguments: str) -> str:
    engine.say = lambda prompt: f'<tool_call>\n{{"name": "calculator", "arguments": {sampled}}}\n</tool_call>'
    messages: Messages = [user("12 + 34?")]
    for _ in range(2):
        message = said(served.chat(*messages, tools=[TOOL]))
        (call,) = message["tool_calls"]
        output = {"role": "tool", "tool_call_id": call["id"], "content": "46"}
        written = {**call, "function": {"name": "calculator", "arguments": arguments}}
        messages += [{"role": "assistant", "content": "", "tool_calls": [written]}, output]
    return session_of(served.chat(*messages, tools=[TOOL]))


@pytest.mark.parametrize("arguments", AGAIN)
def test_a_call_written_again_is_in_the_same_dialogue(served, engine, run_folder, arguments: str):
    assert scored(served, called(served, engine, WRITTEN, arguments))["episodes"] == 1
    ((_, episode),) = records(run_folder)
    assert len(episode.turns) == 3


@pytest.mark.parametrize("change", table(__file__, "other_values"))
def test_another_value_in_a_call_is_another_dialogue(served, engine, change: str):
    # Control.
    called(served, engine, PLAIN, json.dumps({**json.loads(PLAIN), **json.loads(change)}))
    assert len(served.gateway.sessions.live) == 3


def test_tokens_rendered_again_would_be_noticed(served, engine, chatml, run_folder, monkeypatch):
    # Control: letters sampled one by one, whose text a tokenizer joins.
    letters = [token for letter in "answer" for token in chatml(letter, add_special_tokens=False)["input_ids"]]
    assert chatml("answer", add_special_tokens=False)["input_ids"] != letters
    for find in (sessions_module.Sessions._continued_node, lambda *_: None):
        monkeypatch.setattr(sessions_module.Sessions, "_continued_node", find)
        monkeypatch.setattr(engine, "tokenizer", Letters(chatml))
        first = served.chat(user("a"))
        served.chat(user("a"), said(first), user("b"))
    kept, anew = (request.prompt_ids for request in engine.asked[1::2])
    prompt = engine.asked[0].prompt_ids
    assert list(kept[len(prompt) :][: len(letters)]) == letters
    assert list(anew[len(prompt) :][: len(letters)]) != letters


class Letters:
    """A tokenizer of single letters."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        parts = [self._tokenizer(letter, **options)["input_ids"] for letter in "answer"]
        return {"input_ids": [token for part in parts for token in part]}

    def decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))
