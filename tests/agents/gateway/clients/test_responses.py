import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from client_results import extras
from spoken_server import MODEL, gold, question, spoken_server

from turntree.agents.episodes.record import read_episodes

pytestmark = pytest.mark.interop
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS: list[Any] = [
    {"type": "function", "name": name, "description": name, "parameters": NUMBERS, "strict": False}
    for name in ("multiply", "add")
]
DO = {"multiply": lambda a, b: a * b, "add": lambda a, b: a + b}


def whole(client: Any, **asked: Any) -> Any:
    return client.responses.create(model=MODEL, tools=TOOLS, **asked)


def streamed(client: Any, **asked: Any) -> Any:
    shown = ""
    with client.responses.stream(model=MODEL, tools=TOOLS, **asked) as stream:
        for event in stream:
            shown += event.delta if event.type == "response.output_text.delta" else ""
        response = stream.get_final_response()
    assert shown == response.output_text
    return response


def played(client: Any, ask: Any, *, remembers: bool) -> list[Any]:
    dialogue: list[Any] = [{"role": "user", "content": question(4)}]
    new, fields, result = dialogue, {"store": remembers}, []
    while True:
        response = ask(client, input=new if remembers else dialogue, instructions="Use the tools.", **fields)
        assert (response.status, response.error) == ("completed", None)
        calls = [item for item in response.output if item.type == "function_call"]
        result.append((response.output_text, [(call.name, call.arguments) for call in calls]))
        if not calls:
            return result
        new = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": str(DO[call.name](**json.loads(call.arguments))),
            }
            for call in calls
        ]
        dialogue += [*response.output, *new]
        fields = {"previous_response_id": response.id} if remembers else fields


def test_three_turns_with_calls_are_one_row_whole_streamed_and_by_previous_response(tmp_path: Path) -> None:
    import openai

    with spoken_server(tmp_path) as server, openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        results = [played(client, ask, remembers=remembers) for ask in (whole, streamed) for remembers in (False, True)]
        with pytest.raises(openai.BadRequestError, match="web_search"):
            client.responses.create(model=MODEL, input="x", tools=[{"type": "web_search"}])
        with pytest.raises(openai.NotFoundError, match="unknown model"):
            client.responses.create(model="other", input="x")
        server.end()
    assert all(result == results[0] for result in results)
    assert [[name for name, _ in calls] for _, calls in results[0]] == [["multiply"], ["add"], []]
    assert results[0][-1][0].endswith(f"#### {gold(4)}")
    (file,) = (server.record / "episodes").iterdir()
    assert [len(episode.turns) for episode in read_episodes(file)] == [3, 3, 3, 3]


def test_the_events_are_those_of_the_types(tmp_path: Path) -> None:
    # Each event as sent, without a field that the types do not know.
    from openai.types.responses import Response, ResponseStreamEvent
    from pydantic import TypeAdapter

    with spoken_server(tmp_path) as server, httpx.Client(base_url=server.url) as http:
        body = {"model": MODEL, "input": question(1), "tools": TOOLS, "include": ["message.output_text.logprobs"]}
        lines = http.post("/responses", json={**body, "stream": True}).text.splitlines()
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        response = http.post("/responses", json=body).json()
    for event in events:
        assert not extras(TypeAdapter(ResponseStreamEvent).validate_python(event)), event
    assert not extras(Response.model_validate(response))
