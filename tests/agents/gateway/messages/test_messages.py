import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateways import Served, SpokenEngine, gateway_at
from gateways import named_events as events
from tables import table

from turntree.agents.episodes.record import read_episodes
from turntree.agents.gateway.messages import answer as answer_module
from turntree.agents.loop.renderer import Renderer

TOOL = {
    "name": "calculator",
    "description": "Compute.",
    "input_schema": {"type": "object", "properties": {"expression": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 + 34", "digits": 2.0}}\n</tool_call>'


@pytest.fixture
def served(engine: SpokenEngine, renderer: Renderer, tmp_path: Path) -> Iterator[Served]:
    with gateway_at(engine, renderer, record=tmp_path / "run", max_context=1024) as served:
        yield served


def ask(served: Served, *messages: Any, **fields: Any) -> httpx.Response:
    chat = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
    body = {"model": "tiny", "max_tokens": 100, "messages": chat, **fields}
    return served.client.post("/v1/messages", json=body)


def put_together(stream: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = stream[0]["message"]
    assert (stream[0]["type"], stream[-1]["type"], stream[-2]["type"]) == (
        "message_start",
        "message_stop",
        "message_delta",
    )
    written = ""
    for event in stream[1:-2]:
        match event["type"], event:
            case "content_block_start", {"index": index, "content_block": block}:
                assert index == len(message["content"])
                message["content"].append(block)
                written = ""
            case "content_block_delta", {"index": index, "delta": {"type": "text_delta", "text": text}}:
                assert index == len(message["content"]) - 1
                message["content"][-1]["text"] += text
            case "content_block_delta", {"delta": {"type": "input_json_delta", "partial_json": text}}:
                written += text
            case "content_block_stop", {"index": index}:
                assert index == len(message["content"]) - 1
                if written:
                    message["content"][-1]["input"] = json.loads(written)
            case kind, _:
                assert kind == "ping"
    message["usage"] |= stream[-2]["usage"]
    return message | stream[-2]["delta"]


def same(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": "", "content": blocks}


@pytest.mark.parametrize(
    "reply", ["four", "", " one\n two ", f"Let me see. {CALL}", CALL, f"{CALL}{CALL}", "END", "a END"]
)
def test_the_events_of_a_stream_are_the_message(served: Served, engine: SpokenEngine, reply: str):
    engine.say = lambda prompt: reply
    for fields in (
        {},
        {"tools": [TOOL], "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "short."}]},
    ):
        fields |= {"stop_sequences": ["END"], "temperature": 0.5, "metadata": {"user_id": "x"}}
        ask(served, "x", **fields)  # from now on the prompt is known, and how much of it was cached is told
        whole = ask(served, "x", **fields).json()
        assert same(put_together(events(ask(served, "x", stream=True, **fields).text))) == same(whole)
        asked, usage = engine.asked[-1], whole["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(asked.prompt_ids)
        assert asked.sampling.temperature == 0.5
        calls = [block for block in whole["content"] if block["type"] == "tool_use"] if fields.get("tools") else []
        reason = "tool_use" if calls else "stop_sequence" if "END" in reply else "end_turn"
        assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, "END" if "END" in reply else None)
        assert len(calls) == (reply.count("<tool_call>") if fields.get("tools") else 0)


def test_a_wrong_order_of_events_is_noticed(served: Served, engine: SpokenEngine, monkeypatch: Any):
    # Control: blocks that are not closed before the next one starts.
    monkeypatch.setattr(answer_module.MessageAnswer, "_close", lambda self: iter(()))
    with pytest.raises(AssertionError):
        test_the_events_of_a_stream_are_the_message(served, engine, f"{CALL}{CALL}")


def test_a_session_of_three_turns_with_calls_is_one_row_and_a_chat_may_go_on_with_it(served, engine, tmp_path):
    system = "Use the tool."
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "12 + 34?"}]}]
    for reply in (f"Let me see. {CALL}", CALL):
        engine.say = lambda prompt, reply=reply: reply
        message = ask(served, *messages, system=system, tools=[TOOL]).json()
        *_, use = message["content"]
        assert (use["name"], use["input"]) == ("calculator", {"expression": "12 + 34", "digits": 2.0})
        use["input"]["digits"] = 2  # as JavaScript writes it
        output = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "46"}]}
        messages += [
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": [output, {"type": "text", "text": "Go on."}]},
        ]
    engine.say = lambda prompt: "46"
    answer = ask(served, *messages, system=system, tools=[TOOL])
    session = answer.headers["x-session-id"]
    roles = [message["role"] for message in served.gateway.sessions.live[session].nodes[-1].given]
    assert roles == ["tool", "user"]
    counted = served.client.post(
        "/v1/messages/count_tokens", json={"model": "tiny", "messages": messages, "system": system, "tools": [TOOL]}
    )
    assert counted.json() == {"input_tokens": len(engine.asked[-1].prompt_ids)}
    assert served.client.post(f"/v1/sessions/{session}/reward", json={"reward": 1.0}).json()["episodes"] == 1
    (file,) = (tmp_path / "run" / "episodes").iterdir()
    (episode,) = read_episodes(file)
    assert len(episode.turns) == 3
    assert [turn.prompt_ids for turn in episode.turns] == [request.prompt_ids for request in engine.asked]


def test_a_chat_continues_a_dialogue_started_with_messages(served: Served, engine: SpokenEngine):
    first = ask(served, "a", system="Be short.")
    content = first.json()["content"][0]["text"]
    second = served.chat(
        {"role": "system", "content": "Be short."}, "a", {"role": "assistant", "content": content}, "b"
    )
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    assert ask(served, "x", max_tokens=2).json()["stop_reason"] == "max_tokens"
    engine.say = lambda prompt: "more and more " * 400
    assert ask(served, "x", max_tokens=9999).json()["stop_reason"] == "model_context_window_exceeded"


@pytest.mark.parametrize(("fields", "says"), table(__file__, "refused_messages"))
def test_what_cannot_be_done_is_refused_by_name(served: Served, fields: dict[str, Any], says: str):
    answer = ask(served, "x", **fields)
    body = answer.json()
    assert (answer.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert says in body["error"]["message"]


def test_more_calls_and_results_than_a_chat_has_are_refused_and_break_nothing(served: Served):
    calls = [{"type": "tool_use", "id": f"c{number}", "name": "f", "input": {}} for number in range(129)]
    answer = ask(served, "x", {"role": "assistant", "content": calls}, "y")
    assert (answer.status_code, "at most 128" in answer.text) == (400, True)
    results = [{"type": "tool_result", "tool_use_id": "c0", "content": "1"} for _ in range(5000)]
    answer = ask(served, "x", {"role": "assistant", "content": calls[:1]}, {"role": "user", "content": results})
    assert (answer.status_code, "at most 4096" in answer.text) == (400, True)


def test_other_refusals_have_their_kinds_and_a_stream_ends_with_its_error(engine: SpokenEngine, renderer: Renderer):
    with gateway_at(engine, renderer, api_key="secret") as served:
        answer = ask(served, "x")
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
        for headers in ({"X-Api-Key": "secret"}, {"Authorization": "Bearer secret"}):
            served.client.headers = {"Content-Type": "application/json", **headers}
            assert ask(served, "x").status_code == 200
        assert ask(served, "x", model="other").json()["error"]["type"] == "not_found_error"
        engine.error = RuntimeError("it broke")
        assert ask(served, "x").json()["error"]["type"] == "api_error"
        *_, last = events(ask(served, "x", stream=True).text)
        assert (last["type"], last["error"]["type"]) == ("error", "api_error")
