import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from gateways import Served, SpokenEngine, gateway_at, streamed
from machine_speed import eventually
from tables import table

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
from turntree.agents.engines.protocol import Sampling, TurnRequest
from turntree.agents.gateway.http.errors import NEUTRAL
from turntree.agents.gateway.http.wire import ChatRequest
from turntree.agents.loop.renderer import Renderer

CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 + 34"}}\n</tool_call>'


def test_a_chat_is_answered_with_its_turn_and_its_tokens(served: Served, engine: SpokenEngine):
    answer = served.chat({"role": "system", "content": "Be short."}, "What is 2 + 2?").json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "four"
    assert answer["choices"][0]["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}, "nothing was sent before, whatever the engine has"
    again = served.chat({"role": "system", "content": "Be short."}, "What is 2 + 2?").json()["usage"]
    assert again["prompt_tokens_details"] == {"cached_tokens": 3}
    details = usage["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (1, 1)
    content = served.chat("x", logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).startswith(b"four")
    assert {entry["logprob"] for entry in content} == {-0.5}


def test_sampling_fields_reach_the_engine(served: Served, engine: SpokenEngine):
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "presence_penalty": 1.0}
    assert served.chat("x", **fields, max_tokens=9, stop_token_ids=[5]).status_code == 200
    asked = engine.asked[-1].sampling
    assert {name: getattr(asked, name) for name in fields} == fields
    assert asked.max_tokens == 9
    assert 5 in asked.stop_token_ids
    served.chat("x", max_completion_tokens=8, max_tokens=9)
    assert engine.asked[-1].sampling.max_tokens == 8


def test_several_choices_have_noise_of_their_own(served: Served, engine: SpokenEngine):
    answer = served.chat("x", n=3, seed=4).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert engine.asked[0].sampling.seed == 4
    assert len({request.sampling.seed for request in engine.asked}) == 3
    assert answer["usage"]["prompt_tokens"] == len(engine.asked[0].prompt_ids)


def test_an_engine_that_shows_nothing_gives_the_same_pieces_and_tokens(served: Served, engine: SpokenEngine):
    engine.say = lambda prompt: "one two three four"
    answers = []
    for engine.watched in (True, False):
        whole = served.chat("x", stop="three", logprobs=True).json()
        choice, usage = whole["choices"][0], whole["usage"]
        stream = streamed(served.chat("x", stop="three", stream=True).text)
        answers.append(
            (choice["message"], choice["logprobs"], choice["finish_reason"], usage["completion_tokens"], stream)
        )
    assert answers[0] == answers[1]
    assert answers[0][-1] == "one two "


def test_calls_are_read_and_the_tools_were_shown(served: Served, engine: SpokenEngine, chatml: Any):
    engine.say = lambda prompt: f"Let me see.\n{CALL}"
    choice = served.chat("x", tools=[CALCULATOR]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "calculator", "arguments": '{"expression": "12 + 34"}'}
    assert "calculator" in chatml.decode(list(engine.asked[-1].prompt_ids))
    choice = served.chat("x", tools=[CALCULATOR], tool_choice="none").json()["choices"][0]
    assert choice["message"]["content"] == f"Let me see.\n{CALL}"
    assert choice["finish_reason"] == "stop"
    engine.say = lambda prompt: '<tool_call>{"name": </tool_call>'
    choice = served.chat("x", tools=[CALCULATOR]).json()["choices"][0]
    assert choice["message"]["content"] == '<tool_call>{"name": </tool_call>'
    assert choice["finish_reason"] == "stop"
    engine.say = lambda prompt: CALL + CALL
    several, one = (
        served.chat("x", tools=[CALCULATOR], parallel_tool_calls=many).json()["choices"][0]["message"]["tool_calls"]
        for many in (True, False)
    )
    assert (len(several), len(one)) == (2, 1)


def test_an_earlier_call_that_the_format_cannot_write_is_refused(engine: SpokenEngine, renderer: Renderer):
    call = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"a": 1, "b": 2}'}}
    with gateway_at(engine, renderer, tool_format="compact") as served:
        answer = served.chat("x", {"role": "assistant", "tool_calls": [call]}, tools=[CALCULATOR])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
        engine.say = lambda prompt: "calculator(12 + 34)"
        choice = served.chat("x", tools=[CALCULATOR]).json()["choices"][0]
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"expression": "12 + 34"}'


def test_completions_take_texts_and_token_ids(served: Served, engine: SpokenEngine, chatml: Any):
    ids = chatml("one")["input_ids"]
    for prompt, count in (("one", 1), (["one", "two"], 2), (ids, 1), ([ids, ids], 2)):
        body = {"model": "tiny", "prompt": prompt, "logprobs": 0, "max_tokens": 20}
        answer = served.client.post("/v1/completions", json=body).json()
        assert [choice["text"] for choice in answer["choices"]] == ["four"] * count
        assert answer["choices"][0]["logprobs"]["text_offset"][:2] == [0, 1]
    assert list(engine.asked[-1].prompt_ids) == ids


@pytest.mark.parametrize(("fields", "param", "expected"), table(__file__, "refused"))
def test_unsupported_fields_are_refused_by_name(served: Served, fields, param, expected):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **fields}
    answer = served.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert expected in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", 1], [1.5], {"a": 1}, None, [[1], []], [True]])
def test_a_prompt_of_no_kind_is_refused(served: Served, prompt: Any):
    answer = served.client.post("/v1/completions", json={"model": "tiny", "prompt": prompt})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


def test_what_is_not_there_or_too_long_is_refused(served: Served):
    wrong_model = served.client.post("/v1/chat/completions", json={"model": "b", "messages": [{"role": "user"}]})
    assert (wrong_model.status_code, wrong_model.json()["error"]["code"]) == (404, "model_not_found")
    for path in ("/", "/v1", "/v1/models/other", "/docs"):
        answer = served.client.get(path)
        assert (answer.status_code, "message" in answer.json()["error"]) == (404, True)
    assert served.client.get("/v1/chat/completions").status_code == 405
    answer = served.chat("x" * 300)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_large_body_is_refused(served: Served):
    answer = served.client.post("/v1/chat/completions", content=b"x" * (1 << 21))
    assert answer.status_code == 413


def test_a_key_is_asked_for_everywhere_but_at_health(engine: SpokenEngine, renderer: Renderer):
    with gateway_at(engine, renderer, api_key="secret") as served:
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Basic secret"}):
            answer = served.client.get("/v1/models", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert served.chat("x", headers=headers).status_code == 401
            assert served.client.get("/metrics", headers=headers).status_code == 401
        assert served.client.get("/health").json() == {"status": "ok"}
        assert served.client.get("/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_request_without_a_slot_gets_a_retry_time(engine: SpokenEngine, renderer: Renderer):
    engine.held = True
    with gateway_at(engine, renderer, max_requests=2) as served, ThreadPoolExecutor(2) as others:
        asked = [others.submit(served.chat, "x") for _ in range(2)]
        eventually(lambda: engine.live == 2)
        answer = served.chat("x")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        engine.held = False
        assert [one.result().status_code for one in asked] == [200, 200]
        assert served.chat("x").status_code == 200


def test_an_answer_that_takes_too_long_is_408_and_frees_its_slot(engine: SpokenEngine, renderer: Renderer):
    engine.held = True
    with gateway_at(engine, renderer, seconds=0.2) as served:
        answer = served.chat("x", n=2)
        assert (answer.status_code, answer.json()["error"]["type"]) == (408, "timeout_error")
        served.idle()
        assert engine.live == 0


def test_an_engine_that_breaks_is_500_and_the_next_request_is_answered(served: Served, engine: SpokenEngine):
    engine.error = RuntimeError("the engine broke: secret path")
    answer = served.chat("x")
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert "secret" not in answer.text
    engine.error = None
    assert served.chat("x").status_code == 200


def test_metrics_count_what_was_answered(served: Served, engine: SpokenEngine):
    served.chat("x")
    served.chat("x", temperature="hot")
    text = served.client.get("/metrics").text
    assert 'turntree_requests_total{path="/v1/chat/completions",status="200"} 1' in text
    assert 'turntree_requests_total{path="/v1/chat/completions",status="400"} 1' in text
    assert f"turntree_prompt_tokens_total {len(engine.asked[-1].prompt_ids)}" in text
    assert "turntree_drafted_tokens_total 2" in text
    assert "turntree_turns_running 0" in text
    assert 'turntree_request_seconds_bucket{le="+Inf"} 2' in text


@pytest.mark.parametrize("speculate", [True, False])
def test_the_local_engine_gives_over_http_what_it_gives_directly(tiny_model, chatml, renderer, speculate):
    config = LocalEngineConfig(
        max_batch=4, max_context=128, threads=1, speculation=Speculation(adaptive=False) if speculate else None
    )
    with (
        LocalEngine.from_pretrained(tiny_model, config=config) as engine,
        gateway_at(engine, renderer, max_context=128) as served,
    ):
        for temperature, stream in ((0, False), (1.0, False), (1.0, True)):
            fields = {"temperature": temperature, "max_tokens": 24, "seed": 5}
            prompt = renderer.initial([{"role": "user", "content": "What is 12 + 34?"}])
            sampling = Sampling(stop_token_ids=renderer.stop_token_ids, **fields)
            direct = asyncio.run(engine.generate(TurnRequest(prompt, sampling)))
            answer = served.chat("What is 12 + 34?", **fields, stream=stream)
            text = streamed(answer.text) if stream else answer.json()["choices"][0]["message"]["content"]
            assert text == renderer.decode(direct.token_ids)


@pytest.mark.parametrize("arguments", ["", None, " ", "{}"])
def test_a_call_without_arguments_is_read_however_it_is_written(served: Served, engine: SpokenEngine, arguments: Any):
    engine.say = lambda prompt: '<tool_call>\n{"name": "calculator", "arguments": {}}\n</tool_call>'
    first = served.chat("x", tools=[CALCULATOR])
    (call,) = first.json()["choices"][0]["message"]["tool_calls"]
    call["function"]["arguments"] = arguments
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    output = {"role": "tool", "tool_call_id": call["id"], "content": "?"}
    second = served.chat("x", said, output, tools=[CALCULATOR])
    assert second.headers["x-session-id"] == first.headers["x-session-id"]


def test_fields_at_neutral_values_are_accepted(served: Served, engine: SpokenEngine):
    served.chat("x")
    neutral = {name: values[0] for name, values in NEUTRAL.items() if values}
    assert {"modalities": ["text"], "reasoning_effort": "none"}.items() <= neutral.items()
    fields = dict.fromkeys([*ChatRequest.model_fields, *NEUTRAL])
    for given in (neutral, {**fields, "model": "tiny", "messages": [{"role": "user", "content": "x"}]}, {"stop": ""}):
        answer = served.chat("x", **given) if "messages" not in given else chat(served, given)
        assert answer.status_code == 200, answer.text
    assert len({request.prompt_ids for request in engine.asked}) == 1
    completion = {"model": "tiny", "prompt": "x", "best_of": 1, "suffix": "", "echo": False, **neutral}
    assert served.client.post("/v1/completions", json=completion).status_code == 200


def chat(served: Served, body: dict[str, Any]) -> httpx.Response:
    return served.client.post("/v1/chat/completions", json=body)


def test_fields_at_unsupported_values_are_refused_by_name(served: Served):
    for name, values in NEUTRAL.items():
        for value in ([7], "other", 2.5):
            answer = served.chat("x", **{name: value})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, name)
            assert all(repr(one) in error["message"] for one in values)
    assert "leave it out" in served.chat("x", modalites=["text"]).json()["error"]["message"]
    assert served.chat("x", ignore_eos=0).status_code == 400


def test_each_prompt_of_a_list_is_counted_once_for_all_its_choices(served: Served, engine: SpokenEngine):
    def usage(**fields: Any) -> tuple[int, int]:
        used = served.client.post("/v1/completions", json={"model": "tiny", **fields}).json()["usage"]
        return used["prompt_tokens"], used["prompt_tokens_details"]["cached_tokens"]

    abc = "abc " * 20
    usage(prompt=abc)
    one, cached = usage(prompt=abc)
    assert cached == 3
    assert usage(prompt=[abc] * 3) == (3 * one, 3 * cached)
    assert usage(prompt=abc, n=4) == (one, cached)
    assert usage(prompt=[abc, abc], n=2) == (2 * one, 2 * cached)
