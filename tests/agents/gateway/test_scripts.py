import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from chat_tokenizers import byte_fallback_tokenizer
from gateways import Served, SpokenEngine, gateway_at
from tables import table

from turntree.agents.engines.protocol import Completion, FinishReason
from turntree.agents.gateway.choices import ChatChoice
from turntree.agents.gateway.messages.answer import MessageAnswer
from turntree.agents.gateway.turn_text import TurnText, byte_token
from turntree.agents.gateway.turns import SampledTurn
from turntree.agents.loop.renderer import Renderer

SCRIPTS: dict[str, str] = table(__file__, "scripts")
STEPS = range(1, 10)


@pytest.fixture(params=["bytes", "fall-back"])
def renderer(request: Any, chatml: Any) -> Renderer:
    return Renderer(chatml if request.param == "bytes" else byte_fallback_tokenizer())


@pytest.fixture
def engine(renderer: Renderer) -> SpokenEngine:
    return SpokenEngine(renderer.tokenizer, steps=STEPS)


@pytest.fixture
def served(engine: SpokenEngine, renderer: Renderer) -> Iterator[Served]:
    with gateway_at(engine, renderer, max_context=2048, max_requests=len(SCRIPTS) * len(STEPS)) as served:
        yield served


def texts(renderer: Renderer) -> list[list[int]]:
    return [renderer.tokenizer(text, add_special_tokens=False)["input_ids"] for text in SCRIPTS.values()]


def heard(text: TurnText, tokens: list[int], step: int) -> None:
    for at in range(0, len(tokens), step):
        before = text.text
        text.add(tokens[at : at + step])
        assert text.text.startswith(before) or text.stopped
    before = text.text
    text.end()
    assert text.text.startswith(before)


def test_the_tokenizers_write_every_script(renderer: Renderer):
    assert len(SCRIPTS) == 20
    assert [renderer.decode(tokens) for tokens in texts(renderer)] == [*SCRIPTS.values()]
    assert (byte_token(renderer.tokenizer) is None) == (
        "ByteLevel" in repr(renderer.tokenizer.backend_tokenizer.decoder)
    )


def test_shown_text_never_changes_wherever_a_turn_is_split(renderer: Renderer):
    byte = byte_token(renderer.tokenizer)
    for tokens in texts(renderer):
        for step in STEPS:
            for cut in (len(tokens), len(tokens) - 1):
                text = TurnText(renderer.decode, byte=byte)
                heard(text, tokens[:cut], step)
                assert text.text == renderer.decode(tokens[:cut])


def test_a_stop_string_of_any_script_ends_the_turn_at_its_last_token(renderer: Renderer):
    byte = byte_token(renderer.tokenizer)
    for script, tokens in zip(SCRIPTS.values(), texts(renderer), strict=True):
        stop = script[len(script) // 2 :][:2]
        kept = next(n for n in range(len(tokens)) if stop in renderer.decode(tokens[:n]))
        for step in STEPS:
            text = TurnText(renderer.decode, [stop], byte=byte)
            heard(text, tokens, step)
            assert (text.text, len(text.tokens)) == (script.partition(stop)[0], kept)


@pytest.mark.parametrize("renderer", ["fall-back"], indirect=True)
def test_the_pieces_of_a_chat_are_the_answer_and_go_on_as_it(served: Served, engine: SpokenEngine):
    for script in SCRIPTS.values():
        engine.say = lambda prompt, script=script: script
        assert served.chat("x").json()["choices"][0]["message"]["content"] == script
        shown = [""] * len(STEPS)
        for piece in choices(served.chat("x", stream=True, n=len(STEPS)).text):
            shown[piece["index"]] += piece["delta"].get("content") or ""
        assert shown == [script] * len(STEPS)
        following = served.chat("x", {"role": "assistant", "content": shown[0]}, "and?", max_tokens=1)
        session = served.gateway.sessions.live[following.headers["x-session-id"]]
        assert session.nodes[-1].parent in session.nodes


@pytest.mark.parametrize("renderer", ["bytes"], indirect=True)
def test_the_pieces_of_completions_are_the_answers(served: Served, engine: SpokenEngine):
    by_prompt = dict(zip("ABCDEFGHIJKLMNOPQRST", SCRIPTS.values(), strict=True))
    engine.say = lambda prompt: by_prompt[prompt.strip()]
    body = {"model": "tiny", "prompt": [*by_prompt], "n": len(STEPS), "stream": True, "max_tokens": 500}
    shown = [""] * len(by_prompt) * len(STEPS)
    for piece in choices(served.client.post("/v1/completions", json=body).text):
        shown[piece["index"]] += piece["text"]
    assert shown == [script for script in SCRIPTS.values() for _ in STEPS]


def test_the_events_of_messages_are_the_answer_whatever_a_step_brings(renderer: Renderer):
    for script, tokens in zip(SCRIPTS.values(), texts(renderer), strict=True):
        zeros = (0.0,) * len(tokens)
        done = Completion(token_ids=tuple(tokens), logprobs=zeros, finish_reason=FinishReason.STOP)
        for step in STEPS:
            text = TurnText(renderer.decode, byte=byte_token(renderer.tokenizer))
            answer = MessageAnswer("tiny", ChatChoice(0, text), prompt=1, most=500)
            shown = [*answer.start()]
            for at in range(0, len(tokens), step):
                text.add(tokens[at : at + step])
                shown += answer.update(0)
            text.end()
            shown += answer.last(0, SampledTurn(prompt_ids=(1,), completion=done, text=text.text))
            assert "".join(deltas(shown)) == script


def deltas(events: Iterable[dict[str, Any]]) -> Iterator[str]:
    return (event["delta"]["text"] for event in events if event["type"] == "content_block_delta")


def choices(stream: str) -> Iterator[dict[str, Any]]:
    # Reads the chunks like a client that splits lines at every Unicode line end.
    for line in stream.splitlines():
        if line not in ("", "data: [DONE]"):
            yield from json.loads(line.removeprefix("data: "))["choices"]


def test_text_that_changes_when_more_follows_is_noticed(renderer: Renderer, monkeypatch: Any):
    # Control: a decoder whose last character may still change, and bytes that are not held back.
    wrong = TurnText(lambda tokens: renderer.decode(tokens)[::-1])
    with pytest.raises(AssertionError):
        heard(wrong, texts(renderer)[0], 1)
    if byte_token(renderer.tokenizer) is not None:
        with pytest.raises(AssertionError):
            heard(TurnText(renderer.decode), texts(renderer)[1], 1)
