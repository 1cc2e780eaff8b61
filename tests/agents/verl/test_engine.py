from __future__ import annotations

from typing import Any

import pytest
from verl.workers.rollout.replica import TokenOutput

from turntree.agents.engines.protocol import Completion, DraftStats, Engine, FinishReason, Sampling
from turntree.agents.verl.engine import VerlEngine
from turntree.agents.verl.turn_words import to_token_output
from turntree.spec_tree import DialogueState

SAMPLING = Sampling(temperature=0.5, max_tokens=3, stop_token_ids=(9,), seed=4)


class Servers:
    """Stands in for verl's client."""

    def __init__(self, *outputs: TokenOutput) -> None:
        self.outputs = list(outputs)
        self.asked: list[dict[str, Any]] = []

    async def generate(self, request_id: str, **request: Any) -> TokenOutput:
        self.asked.append({"request_id": request_id, **request})
        return self.outputs.pop(0)


def output(*tokens: int, stop_reason: str = "completed", **extra: Any) -> TokenOutput:
    return TokenOutput(
        token_ids=list(tokens), log_probs=[-1.0] * len(tokens), stop_reason=stop_reason, extra_fields=extra
    )


async def test_all_turns_of_an_episode_go_to_one_server() -> None:
    servers = Servers(output(1, 9), output(2, 9), output(3, 9))
    engine = VerlEngine(servers, backend="trtllm")
    await engine.generate((5,), SAMPLING)
    await engine.generate((5, 1, 9), SAMPLING)
    await VerlEngine(servers, backend="trtllm").generate((5,), SAMPLING)
    first, second, other = (request["request_id"] for request in servers.asked)
    assert first == second != other


async def test_sampling_and_state_reach_the_server() -> None:
    servers = Servers(output(1, 9))
    state = DialogueState.from_tokens((5,), task="t")
    await VerlEngine(servers, backend="turntree").generate((5,), SAMPLING, state=state)
    (request,) = servers.asked
    assert request["prompt_ids"] == [5]
    assert request["state"] is state
    parameters = request["sampling_params"]
    assert (parameters["temperature"], parameters["max_tokens"], parameters["seed"]) == (0.5, 3, 4)
    assert parameters["stop_token_ids"] == [9]


async def test_a_turn_of_our_server_crosses_verl_with_its_counters() -> None:
    completion = Completion(
        token_ids=(1, 2),
        logprobs=(-1.0, -2.0),
        finish_reason=FinishReason.LENGTH,
        draft=DraftStats(verify_steps=1, drafted=3, accepted=2),
        accepted=(True, False),
        cached_tokens=5,
        levels="CA",
        behaviour_logprobs=(-1.5, -2.5),
        weights_version=7,
    )
    crossing = to_token_output(completion, 7)
    assert (crossing.token_ids, crossing.log_probs, crossing.stop_reason) == ([1, 2], [-1.0, -2.0], "length")
    assert crossing.extra_fields == {
        "global_steps": 7,
        "num_cached_tokens": 5,
        "spec_num_draft_tokens": 3,
        "spec_num_accepted_tokens": 2,
        "spec_num_verify_steps": 1,
        "accepted": [True, False],
        "levels": "CA",
        "behaviour_logprobs": [-1.5, -2.5],
    }
    assert await VerlEngine(Servers(crossing), backend="trtllm").generate((5,), SAMPLING) == completion


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (output(1, 9), FinishReason.STOP),
        (output(1, 2, 3), FinishReason.LENGTH),
        (output(1, stop_reason="aborted"), FinishReason.ABORT),
    ],
)
async def test_why_a_turn_ended_is_read_from_its_tokens(answer: TokenOutput, reason: FinishReason) -> None:
    completion = await VerlEngine(Servers(answer), backend="trtllm").generate((5,), SAMPLING)
    assert completion.finish_reason is reason


async def test_a_server_without_log_probabilities_is_an_error() -> None:
    answer = TokenOutput(token_ids=[1], log_probs=None)
    with pytest.raises(RuntimeError, match="calculate_log_probs=True"):
        await VerlEngine(Servers(answer), backend="trtllm").generate((5,), SAMPLING)


def test_it_is_an_engine() -> None:
    assert isinstance(VerlEngine(Servers(), backend="trtllm"), Engine)
