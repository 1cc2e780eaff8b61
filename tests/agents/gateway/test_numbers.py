import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gateways import Served, gateway_at

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.gateway.http.wire import ChatRequest, CompletionRequest
from turntree.agents.gateway.messages.request import MessagesRequest
from turntree.agents.gateway.session_paths import RewardRequest
from turntree.agents.loop.renderer import Renderer

SAMPLING: dict[str, tuple[float, float]] = {
    "n": (1, 128),
    "temperature": (0.0001, 100),
    "top_p": (1e-06, 1),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "max_tokens": (1, 2**31 - 1),
    "stop_token_ids": (0, 2**31 - 1),
    "seed": (-(2**63), 2**64 - 1),
}
MESSAGES = {name: SAMPLING[name] for name in ("temperature", "top_p", "max_tokens")} | {"top_k": (0, 2**31 - 1)}
RANGES = {
    ChatRequest: SAMPLING | {"max_completion_tokens": SAMPLING["max_tokens"], "top_logprobs": (0, 20)},
    CompletionRequest: SAMPLING | {"logprobs": (0, 20), "prompt": (0, 2**31 - 1)},
    MessagesRequest: MESSAGES,
    RewardRequest: dict.fromkeys(("reward", "parts", "by"), (-1_000_000, 1_000_000)),
}
PATHS = {ChatRequest: "/v1/chat/completions", CompletionRequest: "/v1/completions", MessagesRequest: "/v1/messages"}
SAID = [{"role": "user", "content": "12 + 34?"}]
BODIES: dict[Any, dict[str, Any]] = {
    ChatRequest: {"model": "tiny", "messages": SAID, "max_tokens": 4, "logprobs": True},
    CompletionRequest: {"model": "tiny", "prompt": "12 + 34?", "max_tokens": 4},
    MessagesRequest: {"model": "tiny", "messages": SAID, "max_tokens": 4},
    RewardRequest: {},
}


@pytest.fixture(scope="module")
def served(tiny_model: Path, renderer: Renderer) -> Iterator[Served]:
    config = LocalEngineConfig(max_batch=16, max_context=64, threads=1)
    with (
        LocalEngine.from_pretrained(tiny_model, config=config) as engine,
        gateway_at(engine, renderer, max_context=64, max_requests=64) as served,
    ):
        yield served


def ask(served: Served, kind: Any, field: str = "", value: Any = None, **fields: Any) -> Any:
    body = BODIES[kind] | fields
    if field == "max_completion_tokens":
        del body["max_tokens"]
    output = json.dumps({**body, **({field: HELD.get(field, "VALUE")} if field else {})})
    path = PATHS.get(kind, "/v1/sessions/nobodys/reward")
    return served.client.post(path, content=output.replace('"VALUE"', str(value)).encode())


HELD: dict[str, Any] = {
    "stop_token_ids": ["VALUE"],
    "prompt": ["VALUE"],
    "parts": {"x": "VALUE"},
    "by": {"answer": "VALUE"},
}
NONE = ("1e400", "-1e400", "1" * 400, "1" * 5000, "-1" + "0" * 400, "1e308", "-1e308", "NaN", "Infinity", "true")


def numeric(kind: Any) -> set[str]:
    schema = kind.model_json_schema()
    numbers = ('"number"', '"integer"')
    nested = json.dumps(schema.get("$defs", {}))
    assert not any(one in nested for one in numbers)
    return {name for name, output in schema["properties"].items() if any(one in json.dumps(output) for one in numbers)}


@pytest.mark.parametrize("kind", RANGES)
def test_every_number_has_a_range_and_its_refusal_states_it(served: Served, kind: Any) -> None:
    assert numeric(kind) - {"logit_bias", "best_of"} == {*RANGES[kind]}
    for field, (low, high) in RANGES[kind].items():
        whole = field in ("n", "seed", "prompt", "logprobs") or field.endswith(("_k", "tokens", "ids", "logprobs"))
        between = (low - 1, high + 1, 0.5) if whole else (low - 1e-9, high * 1.01)
        for value in (*between, *NONE):
            answer = ask(served, kind, field, value)
            output = str(answer.json()["error"])
            assert answer.status_code == 400, (field, value, output)
            if "out of range at line" not in output:  # JSON's own reader gives up
                assert field in output
                assert f"from {low} to {high}, " in output, (field, value, output)


def said(answer: Any) -> list[Any]:
    return [choice["message"] for choice in answer.json()["choices"]]


@pytest.mark.parametrize("kind", PATHS)
def test_no_number_harms_concurrent_requests(served: Served, kind: Any) -> None:
    alone = [said(ask(served, ChatRequest, seed=seed)) for seed in range(6)]
    with ThreadPoolExecutor(12) as clients:
        for field, (low, high) in RANGES[kind].items():
            odd = [
                clients.submit(ask, served, kind, field, value) for value in (low, high, low - 1, 2 * high + 1, 5e-324)
            ]
            others = [clients.submit(ask, served, ChatRequest, seed=seed) for seed in range(6)]
            assert [said(one.result()) for one in others] == alone, field
            assert {one.result().status_code for one in odd} <= {200, 400}, field
