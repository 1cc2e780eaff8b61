import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from field_templates import field_renderer
from gateways import Served, SpokenEngine, gateway_at, named_events
from tables import table

from turntree.agents.episodes.record import read_episodes
from turntree.agents.gateway.responses import answer as answer_module
from turntree.agents.loop.renderer import Renderer

TOOL = {
    "type": "function",
    "name": "calculator",
    "description": "Compute.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 + 34"}}\n</tool_call>'


@pytest.fixture
def served(engine: SpokenEngine, renderer: Renderer, tmp_path: Path) -> Iterator[Served]:
    with gateway_at(engine, renderer, record=tmp_path / "run", max_context=1024) as served:
        yield served


def ask(served: Served, given: Any = "x", **fields: Any) -> httpx.Response:
    return served.client.post("/v1/responses", json={"model": "tiny", "input": given, **fields})


def events(text: str) -> list[dict[str, Any]]:
    found = named_events(text)
    assert [event["sequence_number"] for event in found] == [*range(len(found))]
    return found


def put_together(stream: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items of a stream, built from its deltas alone."""
    assert [event["type"] for event in stream[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    ended = 0
    for event in stream[2:-1]:
        assert event["output_index"] == ended
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert len(items) == ended
                items.append(event["item"])
            case "content_part.added":
                items[-1]["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                items[-1]["content"][event["content_index"]]["text"] += event["delta"]
            case "function_call_arguments.delta":
                items[-1]["arguments"] += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert event["text"] == items[-1]["content"][0]["text"]
                told = [(entry["token"], entry["logprob"]) for entry in event.get("logprobs", ())]
            case "content_part.done":
                part = items[-1]["content"][0]
                part |= {"logprobs": event["part"]["logprobs"]} if "logprobs" in part else {}
                assert event["part"] == part
                assert told == [(entry["token"], entry["logprob"]) for entry in part.get("logprobs", ())]
            case "function_call_arguments.done":
                assert event["arguments"] == items[-1]["arguments"]
            case kind:
                assert kind == "output_item.done"
                assert event["item"] == items[-1] | {"status": event["item"]["status"]}
                items[-1] = event["item"]
                ended += 1
    assert stream[-1]["response"]["output"] == items
    return items


def same(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


REPLIES = ["four", "", " one\n two ", f"Let me see. {CALL}", CALL, f"{CALL}{CALL}", "a END"]


@pytest.mark.parametrize("reply", REPLIES)
def test_the_events_of_a_stream_are_the_response(served: Served, engine: SpokenEngine, reply: str):
    engine.say = lambda prompt: reply
    for fields in ({"include": ["message.output_text.logprobs"], "top_logprobs": 1}, {"tools": [TOOL]}):
        fields |= {"stop": ["END"], "temperature": 0.5, "instructions": "Be short."}
        ask(served, **fields)  # afterwards the prompt is known, so that its cached tokens are counted
        whole = ask(served, **fields).json()
        stream = events(ask(served, stream=True, **fields).text)
        assert same(put_together(stream)) == same(whole["output"])
        assert stream[-1]["type"] == "response.completed"
        assert stream[-1]["response"]["usage"] == whole["usage"]
        assert whole["usage"]["input_tokens"] == len(engine.asked[-1].prompt_ids)
        calls = [item for item in whole["output"] if item["type"] == "function_call"]
        assert len(calls) == (reply.count("<tool_call>") if fields.get("tools") else 0)
        texts = [item["content"][0] for item in whole["output"] if item["type"] == "message"]
        assert all(bool(part["logprobs"]) == ("include" in fields) for part in texts)
    assert engine.asked[-1].sampling.temperature == 0.5
    assert ask(served, max_output_tokens=2).json()["status"] == ("incomplete" if len(reply) > 2 else "completed")


def test_an_item_that_never_ends_is_noticed(served: Served, engine: SpokenEngine, monkeypatch: Any):
    # Control: the message is still open when the calls begin.
    monkeypatch.setattr(answer_module.ResponseAnswer, "_close", lambda self, logprobs, status: iter(()))
    with pytest.raises(AssertionError):
        test_the_events_of_a_stream_are_the_response(served, engine, f"Let me see. {CALL}")


@pytest.mark.parametrize("remembers", [False, True])
def test_a_dialogue_of_three_turns_with_calls_is_one_row(served, engine, tmp_path, remembers):
    # The client sends back the whole dialogue, or only new items and the id of the last response.
    dialogue: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "12 + 34?"}]}]
    new, before, fields = dialogue, None, {"tools": [TOOL], "instructions": "Use the tool."}
    for reply in (f"Let me see. {CALL}", CALL, "46"):
        engine.say = lambda prompt, reply=reply: reply
        known = {"previous_response_id": before} if remembers and before else {"store": remembers}
        answer = ask(served, new if remembers else dialogue, **fields, **known)
        before, output = answer.json()["id"], answer.json()["output"]
        new = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "46"}
            for item in output
            if item["type"] == "function_call"
        ]
        dialogue += [*output, *new]
    session = answer.headers["x-session-id"]
    assert served.client.post(f"/v1/sessions/{session}/reward", json={"reward": 1.0}).json()["episodes"] == 1
    (file,) = (tmp_path / "run" / "episodes").iterdir()
    (episode,) = read_episodes(file)
    assert [turn.prompt_ids for turn in episode.turns] == [request.prompt_ids for request in engine.asked]
    for earlier, later in zip(episode.turns, episode.turns[1:], strict=False):
        sampled = (*earlier.prompt_ids, *earlier.completion.token_ids)
        assert later.prompt_ids[: len(sampled)] == sampled
    if remembers:
        refused = ask(served, "y", previous_response_id=before)
        assert (refused.status_code, "has ended" in refused.text) == (409, True)


def test_a_response_that_was_not_stored_cannot_be_named(served: Served):
    for before in (ask(served, store=False).json()["id"], "resp_other"):
        answer = ask(served, "y", previous_response_id=before)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "previous_response_not_found")


@pytest.mark.parametrize(("fields", "says"), table(__file__, "refused_responses"))
def test_what_cannot_be_done_is_refused_by_name(served: Served, fields: dict[str, Any], says: str):
    answer = served.client.post("/v1/responses", json={"model": "tiny", "input": "x", **fields})
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_a_request_of_codex_is_answered(served: Served, engine: SpokenEngine, caplog: Any):
    # The fields that public reports show in the first request of a dialogue.
    engine.say = lambda prompt: CALL
    given = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox: read-only."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "12 + 34?"}]},
    ]
    fields = {"tool_choice": "auto", "parallel_tool_calls": False, "store": False, "stream": True, "tools": [TOOL]}
    fields |= {"reasoning": {"effort": "medium", "summary": "auto"}, "include": ["reasoning.encrypted_content"]}
    fields |= {"prompt_cache_key": "0197", "text": {"verbosity": "low"}, "client_metadata": {"x": "y"}}
    for _ in range(2):
        answer = ask(served, given, instructions="You are a coding agent.", **fields)
        (item,) = put_together(events(answer.text))
        assert (item["type"], item["name"]) == ("function_call", "calculator")
    (system, _) = served.gateway.sessions.live[answer.headers["x-session-id"]].nodes[0].given
    assert system["content"] == "You are a coding agent.\n\nSandbox: read-only."
    warned = [record.message for record in caplog.records if "no effect" in record.message]
    assert len(warned) == 4, "two fields, each once a session"


def test_an_error_within_a_stream_is_its_last_event(served: Served, engine: SpokenEngine):
    engine.error = RuntimeError("it broke")
    *_, last = ask(served, stream=True).text.strip().split("\n\n")
    assert json.loads(last.split("data: ")[1])["type"] == "error"


THOUGHT = "<think>\nIt is 6 times 7.\n</think>\n\n42"


def thinking_gateway(reply: str, **fields: Any) -> Any:
    renderer = field_renderer("Qwen3")
    return gateway_at(SpokenEngine(renderer.tokenizer, say=lambda prompt: reply), renderer, max_context=900, **fields)


def message(served: Served, *messages: Any, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "max_tokens": 100, "messages": [*messages], **fields}
    return served.client.post("/v1/messages", json=body)


@pytest.mark.parametrize("reply", [THOUGHT, f"<think>hm</think>{CALL}", "<think>never ends", "no thought"])
def test_thoughts_are_items_of_their_own_whole_and_in_pieces(reply: str):
    with thinking_gateway(reply) as served:
        whole = ask(served, tools=[TOOL]).json()
        assert same(put_together(events(ask(served, tools=[TOOL], stream=True).text))) == same(whole["output"])
        thoughts = [item["content"][0]["text"] for item in whole["output"] if item["type"] == "reasoning"]
        tokens = whole["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert (len(thoughts), bool(tokens)) == (("<think>" in reply), "<think>" in reply)
        assert all("think>" not in thought and thought == thought.strip() for thought in thoughts)
        content = message(served, {"role": "user", "content": "x"}, thinking={"type": "adaptive"}).json()["content"]
        assert [block["thinking"] for block in content if block["type"] == "thinking"] == thoughts
        assert "thinking" not in message(served, {"role": "user", "content": "x"}).text.replace('"end_turn"', "")


@pytest.mark.parametrize(
    ("sent", "turns"),
    [
        ([{"type": "thinking", "thinking": "It is 6 times 7.", "signature": "s"}, {"type": "text", "text": "42"}], 2),
        ([{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "42"}], 2),
        ([{"type": "text", "text": "42"}], 2),
        ([{"type": "text", "text": " 42\n"}], 2),
        ([{"type": "thinking", "thinking": "It is 6 times 8.", "signature": "s"}, {"type": "text", "text": "42"}], 1),
        ([{"type": "text", "text": "43"}], 1),
    ],
)
def test_a_dialogue_goes_on_without_its_thought_but_not_with_another(sent: list[Any], turns: int):
    with thinking_gateway(THOUGHT) as served:
        user = {"role": "user", "content": "6 * 7?"}
        first = message(served, user, thinking={"type": "enabled", "budget_tokens": 512})
        answer = {"role": "assistant", "content": sent}
        dialogue = [user, answer, {"role": "user", "content": "Sure?"}]
        second = message(served, *dialogue)
        assert (first.headers["x-session-id"] == second.headers["x-session-id"]) == (turns == 2)
        assert served.gateway.metrics.counts["sessions_resembling_total", ""] == 2 - turns
        # The thought is compared further up in the dialogue, too.
        dialogue += [{"role": "assistant", "content": "42"}, {"role": "user", "content": "Really?"}]
        assert message(served, *dialogue).headers["x-session-id"] == second.headers["x-session-id"]
        other = {"type": "thinking", "thinking": "Nine.", "signature": "s"}
        dialogue[1] = {"role": "assistant", "content": [other, *sent[-1:]]}
        assert message(served, *dialogue).headers["x-session-id"] not in (
            first.headers["x-session-id"],
            second.headers["x-session-id"],
        )


def test_a_wish_is_counted_and_not_obeyed(engine: SpokenEngine, renderer: Renderer):
    with gateway_at(engine, renderer, max_context=900, wishes=("tool_choice",), other_names=("small",)) as served:
        for choice in ("required", {"type": "function", "name": "calculator"}):
            answer = ask(served, tools=[TOOL], tool_choice=choice, model="small")
            assert (answer.status_code, answer.json()["model"]) == (200, "small")
        assert served.gateway.metrics.counts["wishes_total", 'field="tool_choice"'] == 2
        refused = ask(served, text={"format": {"type": "json_object"}})
        assert (refused.status_code, "--wish response_format" in refused.text) == (400, True)
        assert ask(served, model="large").status_code == 404
