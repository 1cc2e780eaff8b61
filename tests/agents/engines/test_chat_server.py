import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chat_stand_in import Answer, ChatStandIn, said
from machine_speed import patience
from tables import table

from turntree.agents.engines.chat_server import UNREADABLE, ChatServer, ContextFull, ServerRefused
from turntree.agents.engines.protocol import FinishReason, Sampling
from turntree.envs.message import ToolCall

ASKED = [{"role": "user", "content": "What is 2 + 2?"}]
SEEDED = Sampling(temperature=0.5, max_tokens=9, seed=2**40 + 3)


@asynccontextmanager
async def served(answer: Any, *, path: str = "", models: Answer | None = None, **settings: Any) -> AsyncIterator[Any]:
    """Start a stand-in that always returns ``answer`` (or ``answer(body)``), and connect a client."""
    with ChatStandIn(answer if callable(answer) else lambda body: answer, *([models] if models else [])) as there:
        async with ChatServer(there.url + path, **settings) as server:
            yield there, server


async def refused(answer: Any, says: str | None, error: type[Exception] = ServerRefused, **settings: Any) -> Any:
    """Check that a turn is refused, and return the stand-in."""
    async with served(answer, **settings) as (there, server):
        with pytest.raises(error, match=says):
            await server.complete(ASKED, SEEDED)
    return there


async def test_a_message_goes_out_and_one_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    async with served(said("4", finish_reason="length")) as (there, server):
        turn = await server.complete(ASKED, Sampling(temperature=0.5, top_p=0.9, max_tokens=9, seed=2**40 + 3))
    assert there.asked == [
        {"model": "small", "messages": ASKED, "temperature": 0.5, "top_p": 0.9, "max_tokens": 9, "seed": 3}
    ]
    assert there.paths == ["/v1/models", "/v1/chat/completions"]
    assert {headers["Authorization"] for headers in there.headers} == {"Bearer secret"}
    assert (turn.content, turn.calls, turn.finish_reason) == ("4", (), FinishReason.LENGTH)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    async with served(said("4")) as (there, server):
        await server.complete(ASKED, SEEDED)
    assert not any("Authorization" in headers for headers in there.headers)


async def test_calls_that_the_server_read_come_as_calls() -> None:
    schema = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    async with served(said(None, ("add", {"a": 2}), ("add", "{a: 2"), ("now", ""))) as (there, server):
        turn = await server.complete(ASKED, SEEDED, tools=[schema])
    assert (there.asked[0]["tools"], turn.content) == ([schema], "")
    assert turn.calls == (
        ToolCall(name="add", arguments={"a": 2}, id="call_0"),
        ToolCall(name="add", arguments={UNREADABLE: "{a: 2"}, id="call_1"),
        ToolCall(name="now", arguments={}, id="call_2"),
    )


async def test_a_path_of_the_url_is_kept_and_the_name_believed_where_no_models_are_listed() -> None:
    async with served(said("4"), path="/v1beta/openai/") as (there, server):
        await server.complete(ASKED, SEEDED)
    assert there.paths == ["/v1beta/openai/models", "/v1beta/openai/chat/completions"]
    async with served(said("4"), models=Answer({}, 404), model="mine") as (there, server):
        await server.complete(ASKED, SEEDED)
    assert there.asked[0]["model"] == "mine"


@pytest.mark.parametrize(("body", "status", "name", "says"), table(__file__, "without_the_model"))
async def test_a_server_without_the_model_is_refused(body: Any, status: int, name: str, says: str) -> None:
    with ChatStandIn(lambda _: said("4"), Answer(body, status)) as there, pytest.raises(ServerRefused, match=says):
        await ChatServer(there.url, model=name or None).__aenter__()


async def test_a_missing_server_is_reported_in_one_line() -> None:
    with ChatStandIn(lambda body: said("4")) as there:
        url = there.url
    with pytest.raises(ServerRefused, match="is a server running there"):
        await ChatServer(url).__aenter__()


@pytest.mark.parametrize("url", ["localhost:8000", "there", "ftp://there/v1"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ServerRefused, match="expected a URL"):
        ChatServer(url)


async def test_a_server_that_is_busy_is_asked_again_and_not_for_ever() -> None:
    numbers = itertools.count()

    def answer(body: Any) -> Answer:
        return said("4") if next(numbers) == 2 else Answer({"error": "busy"}, 429, {"Retry-After": "0"})

    async with served(answer, tries=3, first_wait=0.0) as (there, server):
        assert (await server.complete(ASKED, SEEDED)).content == "4"
        assert len(there.asked) == 3
        with pytest.raises(ServerRefused, match="429"):
            await server.complete(ASKED, SEEDED)
    assert len(there.asked) == 6


async def test_a_wait_that_would_end_too_late_is_not_started() -> None:
    busy = Answer({"error": "busy"}, 503, {"Retry-After": "30"})
    assert len((await refused(busy, "503", seconds=20.0, tries=2)).asked) == 1


async def test_all_tries_of_a_turn_have_one_deadline() -> None:
    seconds = patience(1)

    def slow(body: Any) -> Answer:
        time.sleep(0.4 * seconds)
        return Answer({"error": "busy"}, 503, {"Retry-After": "0"})

    assert len((await refused(slow, r"within .* s, all tries included", seconds=seconds)).asked) <= 3


def spread(answer: Answer, piece: bytes, count: int, wait: float = 0.0) -> Answer:
    def pieces() -> Iterator[bytes]:
        for _ in range(count):
            time.sleep(wait)
            yield piece
        yield json.dumps(answer.body).encode()

    return Answer(pieces())


async def test_a_server_that_trickles_is_late() -> None:
    seconds = patience(1)
    late = "did not answer POST /chat/completions within"
    await refused(lambda body: spread(said("4"), b" ", 40, seconds / 20), late, seconds=seconds)
    async with served(lambda body: spread(said("4"), b" ", 3), seconds=seconds) as (_, server):  # the control
        assert (await server.complete(ASKED, SEEDED)).content == "4"


async def test_an_answer_has_the_bytes_that_its_tokens_can_take() -> None:
    text = "x" * (3 << 20)
    for answer in (said(text), spread(said("4"), b" " * (1 << 18), 16)):
        await refused(lambda body, answer=answer: answer, r"at most 1,057,792 bytes, .* got more")
    async with served(said(text)) as (_, server):  # the control
        assert (await server.complete(ASKED, Sampling(max_tokens=1 << 12))).content == text


async def test_values_too_deep_to_be_read_are_no_crash() -> None:
    await refused(Answer("[" * 100_000), "expected JSON")
    async with served(said(None, ("add", "[" * 10_000))) as (_, server):
        (call,) = (await server.complete(ASKED, SEEDED)).calls
    assert [*call.arguments] == [UNREADABLE]


async def test_a_parameter_that_a_server_refuses_is_renamed_or_left_out_from_then_on() -> None:
    def strict(body: Any) -> Answer:
        if "max_tokens" in body:
            return Answer({"error": {"message": "Unsupported: 'max_tokens'. Use 'max_completion_tokens'."}}, 400)
        if "seed" in body:
            return Answer({"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]}, 422)
        return said("4")

    async with served(strict) as (there, server):
        await server.complete(ASKED, SEEDED)
        await server.complete(ASKED, SEEDED)
    assert len(there.asked) == 4
    assert there.asked[-1] == {"model": "small", "messages": ASKED, "temperature": 0.5, "max_completion_tokens": 9}


@pytest.mark.parametrize("text", table(__file__, "too_long"))
async def test_a_dialogue_that_does_not_fit_has_an_error_of_its_own(text: str) -> None:
    assert len((await refused(Answer(text, 400), None, ContextFull)).asked) == 1


@pytest.mark.parametrize(("body", "status", "says"), table(__file__, "refusals"))
async def test_a_refusal_says_what_to_do(body: Any, status: int, says: str) -> None:
    async with served(Answer(body, status)) as (_, server):
        with pytest.raises(ServerRefused, match=says) as refused:
            await server.complete(ASKED, SEEDED)
    assert not isinstance(refused.value, ContextFull)


async def test_what_chat_completions_do_not_know_is_refused() -> None:
    async with served(said("4")) as (there, server):
        with pytest.raises(ValueError, match="top_k"):
            await server.complete(ASKED, Sampling(top_k=3))
    assert there.asked == []
