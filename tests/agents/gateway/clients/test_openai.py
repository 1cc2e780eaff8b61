import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from client_results import require_result
from served_command import served_command
from spoken_server import MODEL, gold, question, spoken_server

pytestmark = pytest.mark.interop
DIALOGUES, TURNS, TOKENS = 50, 3, 12
ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
MULTIPLY = {**ADD, "name": "multiply", "description": "Multiply two numbers."}
TOOLS: list[Any] = [{"type": "function", "function": one} for one in (ADD, MULTIPLY)]


def client_at(base_url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)


def fields_of(number: int) -> dict[str, Any]:
    found: dict[str, Any] = {"max_tokens": TOKENS, "logprobs": True, "top_logprobs": 2}
    if number % 4 == 1:
        found["tools"] = TOOLS
    if number % 5 == 2:
        found["n"] = 2
    if number % 7 == 3:
        found["stop"] = ["e", " "]
    return found


def whole(client: Any, messages: list[Any], **fields: Any) -> tuple[list[Any], Any]:
    done = client.chat.completions.create(model="tiny", messages=messages, **fields)
    choices = [(c.message.content or "", tokens_of(c.logprobs.content), c.finish_reason) for c in done.choices]
    return choices, done.usage


def in_pieces(client: Any, messages: list[Any], **fields: Any) -> tuple[list[Any], Any]:
    texts: dict[int, str] = {}
    ends: dict[int, Any] = {}
    usage = None
    options = {"include_usage": True}
    for piece in client.chat.completions.create(
        model="tiny", messages=messages, stream=True, stream_options=options, **fields
    ):
        usage = piece.usage or usage
        for c in piece.choices:
            texts[c.index] = texts.get(c.index, "") + (c.delta.content or "")
            if c.finish_reason:
                ends[c.index] = (tokens_of(c.logprobs.content), c.finish_reason)
    return [(texts[index], *ends[index]) for index in sorted(texts)], usage


def tokens_of(content: Any) -> list[tuple[str, tuple[int, ...]]]:
    return [(entry.token, tuple(entry.bytes)) for entry in content]


def dialogue(client: Any, number: int, temperature: float) -> tuple[list[Any], int]:
    ask = in_pieces if number % 2 else whole
    messages: list[Any] = []
    result, accepted = [], 0
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"{number % 10} and {turn}?"})
        choices, usage = ask(client, messages, temperature=temperature, seed=number % 10, **fields_of(number))
        assert len(choices) == fields_of(number).get("n", 1)
        assert all(0 < len(tokens) <= TOKENS for _, tokens, _ in choices)
        assert usage.completion_tokens == sum(len(tokens) for _, tokens, _ in choices)
        if turn:
            assert usage.prompt_tokens_details.cached_tokens > 0
        accepted += usage.completion_tokens_details.accepted_prediction_tokens
        result.append(choices)
        messages.append({"role": "assistant", "content": choices[0][0]})
    return result, accepted


def test_dialogues_with_and_without_drafts_are_equal_token_for_token(tiny_model: Path, tmp_path: Path) -> None:
    played = [(number, temperature) for temperature in (0.0, 1.0) for number in range(DIALOGUES)]
    with (
        served_command(tiny_model, tmp_path / "plain.txt", "--no-speculate") as without,
        served_command(tiny_model, tmp_path / "drafting.txt") as drafting,
    ):
        plain, ours = client_at(without), client_at(drafting)
        with plain, ours, ThreadPoolExecutor(8) as threads:
            assert [model.id for model in ours.models.list()] == ["tiny"]
            expected = [*threads.map(lambda one: dialogue(plain, *one), played)]
            found = [*threads.map(lambda one: dialogue(ours, *one), played)]
            refused(ours)
    assert sum(accepted for _, accepted in expected) == 0 < sum(accepted for _, accepted in found)
    equal = sum(one[0] == other[0] for one, other in zip(found, expected, strict=True))
    asked = "streams, `tools`, `n`, `seed`, `logprobs`, `stop`"
    played_at = f"{DIALOGUES} dialogues at temperature 0 and at 1 ({asked})"
    require_result("openai", f"{played_at}: {equal} of {len(played)} equal with and without drafts")


def refused(client: Any) -> None:
    import openai

    message: list[Any] = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.NotFoundError, match="unknown model"):
        client.chat.completions.create(model="other", messages=message)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="tiny", messages=message, temperature=-1)


def test_calls_are_read_from_a_stream_and_answered(tmp_path: Path) -> None:
    import openai

    do = {"multiply": lambda a, b: a * b, "add": lambda a, b: a + b}
    with spoken_server(tmp_path) as server, openai.OpenAI(base_url=server.url, api_key="none") as client:
        messages: list[Any] = [{"role": "user", "content": question(4)}]
        names = []
        while True:
            with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
                result = stream.get_final_completion().choices[0].message
            messages.append(result.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
            if not result.tool_calls:
                break
            for call in result.tool_calls:
                names.append(call.function.name)
                answer = do[call.function.name](**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(answer)})
        assert names == ["multiply", "add"]
        assert result.content.endswith(f"#### {gold(4)}")
