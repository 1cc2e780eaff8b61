import asyncio
import json
from typing import Any

import numpy as np
import pytest
from machine_speed import soon

from turntree.agents.engines.protocol import FinishReason, Sampling, ScoringEngine, TurnRequest
from turntree.agents.engines.request_wire import draft_of, given_of, is_reverified, seed_of, state_of
from turntree.agents.engines.server_client import ServerError
from turntree.agents.engines.sglang.server import SglangServer
from turntree.agents.engines.sglang.wire import ACCEPTED, DRAFTED, REVERIFIES
from turntree.agents.errors import EngineLost
from turntree.spec_tree import DialogueState

httpx = pytest.importorskip("httpx")

PROMPT = (1, 2, 3)
LAW = np.log([0.4, 0.3, 0.2, 0.1])


def entries(tokens: list[int]) -> list[list[Any]]:
    return [[float(LAW[token]), token, None] for token in tokens]


class StandIn:
    """Answers with tokens 0, 1, 2, 3, 0, 1, ... and records the requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.busy = 2
        self.hangs = False
        self.states: list[dict[str, Any]] = []
        self.reverifies = False

    async def __call__(self, request: Any) -> Any:
        body = json.loads(request.content or b"{}")
        self.asked.append((request.url.path, body))
        if request.url.path == "/generate":
            if self.hangs:
                await asyncio.sleep(60)
            return httpx.Response(200, json=self.turn(body))
        if request.url.path == "/server_info":
            return httpx.Response(200, json={"internal_states": self.states})
        if request.url.path == "/flush_cache":
            self.busy -= 1
            return httpx.Response(400 if self.busy >= 0 else 200, text="")
        if request.url.path == "/update_weights_from_disk":
            return httpx.Response(200, json={"success": body["model_path"] != "nowhere", "message": "no such folder"})
        return httpx.Response(200, text="")

    def turn(self, body: dict[str, Any]) -> dict[str, Any]:
        count, width = body["sampling_params"]["max_new_tokens"], body["top_logprobs_num"]
        entered = body["sampling_params"].get("custom_params")
        said = [n % 4 for n in range(given_of(entered), given_of(entered) + count)]
        start = body.get("logprob_start_len", len(body["input_ids"]))
        given = body["input_ids"][start:]
        top = entries(list(range(width)))
        ended = {"finish_reason": {"type": "length", "length": count}, "cached_tokens": 2}
        sampled = {"output_token_logprobs": entries(said), "output_top_logprobs": [top] * count}
        first = [[None, given[0], None]] if given else []
        scored = {
            "input_token_logprobs": [*first, *entries(given[1:])],
            "input_top_logprobs": [None, *[top] * len(given[1:])],
        }
        if is_reverified(entered) and self.reverifies:
            drawn = entries([n % 4 for n in range(len(given) - 1)])
            scored["input_top_logprobs"] = [None, *([entry] * 2 for entry in drawn)]
        return {
            "text": "never read",
            "output_ids": said,
            "meta_info": {**ended, **sampled, **scored, DRAFTED: [3, 2], ACCEPTED: [2, 1]},
        }


@pytest.fixture
def stand_in() -> StandIn:
    return StandIn()


@pytest.fixture
def server(stand_in: StandIn) -> Any:
    with SglangServer("http://there/", vocabulary=4, transport=httpx.MockTransport(stand_in)) as client:
        yield client


async def test_a_turn_is_token_ids_with_what_is_known_of_them(server, stand_in):
    assert isinstance(server, ScoringEngine)
    state = DialogueState(exact=5, task="7")
    turn = await server.generate(
        TurnRequest(PROMPT, Sampling(max_tokens=6, seed=3, top_logprobs=2), state=state, draft=(3, 2, 9))
    )
    assert turn.token_ids == (0, 1, 2, 3, 0, 1)
    assert turn.logprobs == pytest.approx(LAW[list(turn.token_ids)])
    assert turn.behaviour_logprobs == turn.logprobs
    assert (turn.finish_reason, turn.cached_tokens) == (FinishReason.LENGTH, 2)
    assert (turn.draft.verify_steps, turn.draft.drafted, turn.draft.accepted) == (3, 5, 3)
    assert turn.accepted == (False, True, True, False, True, False)
    assert turn.top.ids.tolist() == [[0, 1]] * 6
    path, body = stand_in.asked[0]
    assert (path, body["input_ids"]) == ("/generate", list(PROMPT))
    sent = body["sampling_params"]["custom_params"]
    assert (state_of(sent), seed_of(sent), draft_of(sent)) == (state, 3, [3, 2])


async def test_scores_are_made_of_the_prompts_log_probabilities_and_laws_after_cuts_of_the_recorded(server):
    scores = await server.score(PROMPT, (3, 0), Sampling(), top=2)
    assert scores.logprobs == pytest.approx((LAW[3], LAW[0]))
    assert scores.top.ids.shape == (3, 2)
    cut = await server.score(PROMPT, (0, 3), Sampling(top_k=2))
    assert cut.logprobs == pytest.approx((np.log(4 / 7), -np.inf))
    cut = await server.generate(TurnRequest(PROMPT, Sampling(max_tokens=2, top_k=2, top_logprobs=2)))
    np.testing.assert_allclose(np.exp(cut.top.logprobs), [[4 / 7, 3 / 7]] * 2, rtol=1e-6)
    assert cut.behaviour_logprobs == pytest.approx(np.log([4 / 7, 3 / 7]))
    assert cut.logprobs == pytest.approx(LAW[:2])


async def test_a_caller_that_gives_up_aborts_its_request(server, stand_in):
    stand_in.hangs = True
    waiting = asyncio.create_task(server.generate(TurnRequest(PROMPT, Sampling())))
    await soon(lambda: stand_in.asked)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await soon(lambda: len(stand_in.asked) == 2)
    (_, asked), (path, aborted) = stand_in.asked
    assert path == "/abort_request"
    assert aborted["rid"] == asked["rid"]


def test_weights_are_updated_once_the_cache_could_be_emptied(server, stand_in):
    server.update_weights_from_disk("checkpoint", version=7)
    assert server.version == 7
    assert [path for path, _ in stand_in.asked] == ["/flush_cache"] * 3 + ["/update_weights_from_disk"]
    with pytest.raises(ServerError, match="no such folder"):
        server.update_weights_from_disk("nowhere")


async def test_a_server_that_does_not_answer_is_a_lost_engine():
    async def away(request: Any) -> Any:
        raise httpx.ConnectError("refused", request=request)

    client = SglangServer("http://there", transport=httpx.MockTransport(away))
    with client, pytest.raises(EngineLost, match="is the SGLang server running"):
        await client.generate(TurnRequest(PROMPT, Sampling()))


def ways(stand_in: StandIn) -> list[tuple[int, int, bool]]:
    bodies = [body for path, body in stand_in.asked if path == "/generate"]
    sent = [body["sampling_params"]["custom_params"] for body in bodies]
    return [
        (len(body["input_ids"]), given_of(each), is_reverified(each)) for body, each in zip(bodies, sent, strict=True)
    ]


@pytest.mark.parametrize(
    ("states", "reverifies", "context", "wanted"),
    [
        ([{REVERIFIES: True}], True, 64, [(9, 6, True), (7, 4, False)]),
        ([{REVERIFIES: False}], True, 64, [(3, 0, False)]),  # other drafts
        ([{}], True, 64, [(3, 0, False)]),  # without turntree's plugin
        ([], True, 64, [(3, 0, False)]),
        ([{REVERIFIES: True}], False, 64, [(9, 6, True), (3, 0, False)]),  # nothing was drawn
        ([{REVERIFIES: True}], True, None, [(3, 0, False)]),  # a prompt with the draft may be too long
    ],
)
async def test_a_server_reverifies_a_draft_if_it_reports_that_it_can(states, reverifies, context, wanted, stand_in):
    stand_in.states, stand_in.reverifies = states, reverifies
    transport = httpx.MockTransport(stand_in)
    with SglangServer("http://there", vocabulary=4, max_context=context, transport=transport) as client:
        for _ in range(2):
            turn = await client.generate(TurnRequest(PROMPT, Sampling(max_tokens=8, seed=3), draft=(0, 1, 2, 0, 1, 2)))
            assert turn.token_ids == (0, 1, 2, 3, 0, 1, 2, 3)
            assert turn.logprobs == pytest.approx(LAW[list(turn.token_ids)])
            assert len(turn.behaviour_logprobs) == 8
    assert ways(stand_in) == wanted * 2
    assert [path for path, _ in stand_in.asked].count("/server_info") == (context is not None)


async def test_what_is_no_token_is_not_given_to_the_model(stand_in):
    stand_in.states, stand_in.reverifies = [{REVERIFIES: True}], True
    transport = httpx.MockTransport(stand_in)
    with SglangServer("http://there", vocabulary=4, max_context=64, transport=transport) as client:
        await client.generate(TurnRequest(PROMPT, Sampling(max_tokens=8, seed=3), draft=(0, 1, 4, -1)))
    assert ways(stand_in) == [(5, 2, True), (5, 2, False)]


async def test_a_turn_is_of_one_policy_though_weights_come_between_its_two_requests(stand_in, monkeypatch):
    stand_in.states, stand_in.reverifies = [{REVERIFIES: True}], True
    transport = httpx.MockTransport(stand_in)
    with SglangServer("http://there", vocabulary=4, max_context=64, transport=transport) as client:
        ask = client._ask

        async def updated(*asked: Any) -> dict[str, Any]:
            answer = await ask(*asked)
            client.version = 1
            return answer

        monkeypatch.setattr(client, "_ask", updated)
        turn = await client.generate(TurnRequest(PROMPT, Sampling(max_tokens=8, seed=3), draft=(0, 1, 2, 0, 1, 2)))
    assert ways(stand_in) == [(9, 6, True), (7, 4, False), (3, 0, False)]
    assert (turn.token_ids, turn.weights_version) == ((0, 1, 2, 3, 0, 1, 2, 3), 1)
