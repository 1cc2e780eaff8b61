import json
import socket
from typing import Any

import pytest
from gateways import Served, SpokenEngine, events, gateway_at
from machine_speed import eventually

from turntree.agents.gateway import choices
from turntree.agents.loop.renderer import Renderer

TEXTS = ["four", "", "Grüße, 你好 🙂 end", "a <tool_call> b", " one\n two  ", "x < y", "half \ufffd of it"]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"é": "ü"}}\n</tool_call>'


def put_together(pieces: list[dict[str, Any]], index: int = 0) -> tuple[dict[str, Any], str | None]:
    message: dict[str, Any] = {"content": ""}
    reason = None
    for event in pieces:
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            assert reason is None, "a piece after the last one"
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message.setdefault("tool_calls", []).extend(delta.get("tool_calls", ()))
            reason = choice["finish_reason"]
    return message, reason


@pytest.mark.parametrize("tools", [[], [TOOL]])
@pytest.mark.parametrize("text", [*TEXTS, f"Let me see. {CALL}", f"{CALL}{CALL}", f" \n{CALL}"])
def test_the_pieces_of_a_stream_are_the_answer(served: Served, engine: SpokenEngine, text: str, tools: list[Any]):
    engine.say = lambda prompt: text
    fields = {"tools": tools} if tools else {}
    whole = served.chat("x", **fields).json()["choices"][0]
    pieces = events(served.chat("x", stream=True, **fields).text)
    message, reason = put_together(pieces)
    assert message["content"] == (whole["message"]["content"] or "")
    assert reason == whole["finish_reason"]
    called = [call["function"] for call in whole["message"].get("tool_calls", ())]
    assert [call["function"] for call in message.get("tool_calls", ())] == called
    assert [call["index"] for call in message.get("tool_calls", ())] == list(range(len(called)))
    assert len({piece["id"] for piece in pieces}) == 1


@pytest.mark.parametrize("stop", ["three", "e t", " four", "o"])
def test_no_part_of_a_stop_string_is_shown(served: Served, engine: SpokenEngine, stop: str):
    engine.say = lambda prompt: "one two three four"
    pieces = events(served.chat("x", stop=[stop, "never"], stream=True).text)
    assert put_together(pieces) == ({"content": "one two three four".partition(stop)[0], "tool_calls": []}, "stop")


def test_pieces_shown_before_they_are_settled_are_noticed(served: Served, engine: SpokenEngine, monkeypatch: Any):
    monkeypatch.setattr(choices, "settled", lambda text, marks: text)
    engine.say = lambda prompt: CALL
    with pytest.raises(AssertionError):
        test_the_pieces_of_a_stream_are_the_answer(served, engine, f"Let me see. {CALL}", [TOOL])
    with pytest.raises(AssertionError):
        test_no_part_of_a_stop_string_is_shown(served, engine, "three")


def test_text_is_shown_while_the_turn_is_sampled(served: Served, engine: SpokenEngine):
    engine.held = True
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": True}
    with served.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        seen = ""
        while "r" not in seen:
            line = next(lines)
            if line:
                seen += json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content", "")
        assert engine.live == 1
        engine.held = False
        assert "[DONE]" in "".join(lines)


def test_choices_are_streamed_interleaved_and_usage_comes_last(served: Served, engine: SpokenEngine):
    pieces = events(served.chat("x", n=2, stream=True, stream_options={"include_usage": True}).text)
    assert pieces[-1]["choices"] == []
    assert pieces[-1]["usage"]["completion_tokens"] > 0
    for index in (0, 1):
        assert put_together(pieces, index)[0]["content"] == "four"
    pieces = events(served.chat("x", stream=True, logprobs=True).text)
    assert len(pieces[-1]["choices"][0]["logprobs"]["content"]) >= 4


def test_an_error_in_the_middle_of_a_stream_is_its_last_event(engine: SpokenEngine, renderer: Renderer):
    engine.held = True
    with gateway_at(engine, renderer, seconds=0.2) as served:
        text = served.chat("x", stream=True).text
        assert json.loads(text.split("\n\n")[-2].removeprefix("data: "))["error"]["type"] == "timeout_error"
        engine.held, engine.error = False, RuntimeError("it broke")
        text = served.chat("x", stream=True).text
        assert json.loads(text.split("\n\n")[-2].removeprefix("data: "))["error"]["type"] == "server_error"
        served.idle()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_its_slot(served: Served, engine: SpokenEngine, stream: bool):
    engine.held = True
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(head + body)
        eventually(lambda: engine.live == 1)
    eventually(lambda: engine.live == 0)
    served.idle()
    engine.held = False
    assert served.chat("x").status_code == 200
    assert "turntree_clients_gone_total 1" in served.client.get("/metrics").text
