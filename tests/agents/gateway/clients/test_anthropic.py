import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from client_results import extras, require_result
from spoken_server import MODEL, gold, question, spoken_server

from turntree.agents.episodes.record import read_episodes

pytestmark = pytest.mark.interop
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS: list[Any] = [{"name": name, "description": name, "input_schema": NUMBERS} for name in ("multiply", "add")]
DO = {"multiply": lambda a, b: a * b, "add": lambda a, b: a + b}


def whole(client: Any, seen: list[str], **asked: Any) -> Any:
    return client.messages.create(**asked)


def streamed(client: Any, seen: list[str], **asked: Any) -> Any:
    shown = ""
    with client.messages.stream(**asked) as stream:
        for event in stream:
            seen.append(event.type)
            if event.type == "text":
                shown += event.text
        message = stream.get_final_message()
    assert shown == "".join(block.text for block in message.content if block.type == "text")
    return message


def played(client: Any, ask: Any, seen: list[str]) -> tuple[list[Any], list[Any]]:
    messages: list[Any] = [{"role": "user", "content": question(4)}]
    result = []
    while True:
        asked = {"model": MODEL, "max_tokens": 200, "system": "Use the tools.", "messages": messages, "tools": TOOLS}
        message = ask(client, seen, **asked)
        counted = client.messages.count_tokens(**{k: v for k, v in asked.items() if k != "max_tokens"})
        assert message.usage.input_tokens + message.usage.cache_read_input_tokens == counted.input_tokens
        assert message.usage.output_tokens > 0
        blocks = [block.model_dump(include={"type", "text", "name", "input"}) for block in message.content]
        result.append((blocks, message.stop_reason))
        messages.append({"role": "assistant", "content": message.content})
        uses = [block for block in message.content if block.type == "tool_use"]
        if not uses:
            return messages, result
        results = [
            {"type": "tool_result", "tool_use_id": use.id, "content": str(DO[use.name](**use.input))} for use in uses
        ]
        messages.append({"role": "user", "content": results})


def test_a_dialogue_with_calls_is_the_same_in_a_stream_and_one_row(tmp_path: Path) -> None:
    import anthropic

    seen: list[str] = []
    with spoken_server(tmp_path) as server:
        base = server.url.removesuffix("/v1")
        with anthropic.Anthropic(base_url=base, api_key="none", max_retries=0) as client:
            _, result = played(client, whole, seen)
            _, again = played(client, streamed, seen)
            refused(client)
        server.end()
    assert result == again
    assert [reason for _, reason in result] == ["tool_use", "tool_use", "end_turn"]
    assert result[-1][0][-1]["text"].endswith(f"#### {gold(4)}")
    kinds = {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta"}
    assert {*kinds, "message_stop", "input_json"} <= {*seen}
    (file,) = (server.record / "episodes").iterdir()
    rows = sorted(len(episode.turns) for episode in read_episodes(file))
    assert rows == [1, 1, 3, 3], "two of one turn by `refused`"
    require_result("anthropic", f"two dialogues with `system`, tools and streams: {sum(rows[2:])} turns in 2 rows")


def refused(client: Any) -> None:
    import anthropic

    asked: Any = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": question(1)}]}
    with pytest.raises(anthropic.NotFoundError, match="unknown model"):
        client.messages.create(**{**asked, "model": "other"})
    with pytest.raises(anthropic.BadRequestError, match="--wish tool_choice"):
        client.messages.create(**asked, tools=TOOLS, tool_choice={"type": "any"})
    cut = client.messages.create(**asked, stop_sequences=["more"])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", "more")
    assert client.messages.create(**{**asked, "max_tokens": 3}).stop_reason == "max_tokens"


def test_the_events_are_those_of_their_types(tmp_path: Path) -> None:
    # Each event as sent, without a field that the types do not know.
    import anthropic
    from anthropic.types import RawMessageStreamEvent
    from pydantic import TypeAdapter

    events: list[Any] = []
    with spoken_server(tmp_path) as server, httpx.Client(base_url=server.url.removesuffix("/v1")) as http:
        body = {
            "model": MODEL,
            "max_tokens": 99,
            "messages": [{"role": "user", "content": question(1)}],
            "tools": TOOLS,
        }
        for line in http.post("/v1/messages", json={**body, "stream": True}).text.splitlines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
        message = http.post("/v1/messages", json=body).json()
    for event in events:
        if event["type"] != "ping":
            known = TypeAdapter(RawMessageStreamEvent).validate_python(event, strict=True)
            assert not extras(known)
    assert not extras(anthropic.types.Message.model_validate(message, strict=True))
