import json
from typing import Any

import httpx
import pytest

from turntree.agents.engines.protocol import FinishReason, Sampling, ScoringEngine, TurnRequest
from turntree.agents.engines.request_wire import KEY
from turntree.agents.engines.served.dialect import UnsupportedSampling
from turntree.agents.engines.server_client import ServerError
from turntree.agents.engines.vllm.server import VllmServer
from turntree.spec_tree import DialogueState

MODELS = {"data": [{"id": "small", "max_model_len": 64}]}
FIRST = {"token_id:4": -2.0, "token_id:7": -0.5, "token_id:8": -1.5}
GIVEN = [None, {"6": {"logprob": -0.25}}, {"2": {"logprob": -3.0}}]
CHOICE: dict[str, Any] = {"token_ids": [4, 9], "finish_reason": "stop", "prompt_logprobs": GIVEN}
ANSWER = {
    "choices": [CHOICE | {"logprobs": {"top_logprobs": [FIRST, {"token_id:9": -0.1, "token_id:3": -9999.0}]}}],
    "usage": {"prompt_tokens_details": {"cached_tokens": 1}},
}


class Server:
    def __init__(self, answer: Any = ANSWER, status: int = 200) -> None:
        self.answer, self.status = answer, status
        self.asked: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json=MODELS)
        self.asked.append(json.loads(request.content))
        return httpx.Response(self.status, json=self.answer)

    def client(self, **settings: Any) -> VllmServer:
        return VllmServer("http://there/v1/", transport=httpx.MockTransport(self), **settings)


async def test_tokens_go_out_and_come_back() -> None:
    server = Server()
    state = DialogueState.from_tokens((5, 6), task="t")
    sampling = Sampling(seed=3, stop_token_ids=(9,), top_logprobs=1)
    with server.client() as engine:
        turn = await engine.generate(TurnRequest((5, 6), sampling, state=state, draft=[4]))
    (body,) = server.asked
    assert (body["model"], body["prompt"], body["return_token_ids"]) == ("small", [5, 6], True)
    assert set(body["vllm_xargs"]) == {KEY, "turntree_seed", "turntree_draft"}
    assert (turn.token_ids, turn.logprobs, turn.top.ids.tolist()) == ((4, 9), (-2.0, -0.1), [[7], [9]])
    assert (turn.finish_reason, turn.cached_tokens) == (FinishReason.STOP, 1)


async def test_given_tokens_are_scored_by_the_prompts_log_probabilities() -> None:
    server = Server({"choices": [CHOICE | {"token_ids": [4], "logprobs": {"top_logprobs": [FIRST]}}]})
    with server.client() as engine:
        scores = await engine.score((5,), (6, 2), Sampling())
    assert (server.asked[0]["prompt"], scores.logprobs) == ([5, 6, 2], (-0.25, -3.0))
    with Server().client() as engine, pytest.raises(ValueError, match=r"top_p=0\.5"):
        await engine.score((5,), (6, 2), Sampling(top_p=0.5))


async def test_what_vllm_cannot_draw_is_refused_before_it_is_asked() -> None:
    server = Server()
    with server.client() as engine, pytest.raises(UnsupportedSampling):
        await engine.generate(TurnRequest((5,), Sampling(min_p=0.5)))
    with server.client(speculates=False) as engine:
        await engine.generate(TurnRequest((5,), Sampling(min_p=0.5)))
    assert server.asked[0]["min_p"] == 0.5


async def test_a_refusal_is_told_with_the_servers_own_words() -> None:
    server = Server({"error": "too long"}, status=400)
    with server.client() as engine, pytest.raises(ServerError, match=r"400.*too long"):
        await engine.generate(TurnRequest((5,), Sampling()))


def test_a_model_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ServerError, match="no model 'large'; it has small"):
        Server().client(model="large")
    with pytest.raises(ServerError, match="vllm serve"):
        VllmServer("http://127.0.0.1:9")


def test_it_is_an_engine_that_scores_and_closes_twice() -> None:
    engine = Server().client()
    assert isinstance(engine, ScoringEngine)
    assert (engine.model, engine.max_context) == ("small", 64)
    engine.close()
    engine.close()
