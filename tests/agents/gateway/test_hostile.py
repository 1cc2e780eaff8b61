import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gateways import Served, SpokenEngine, gateway_at
from hostile_clients import attack
from machine_speed import eventually

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.engines.protocol import Sampling, TurnRequest
from turntree.agents.episodes.record import read_episodes
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.loop.renderer import Renderer


def last_user(prompt: str) -> str:
    return prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]


def an_honest_dialogue(served: Served, name: str, turns: int) -> str:
    messages: list[Any] = []
    session = ""
    for number in range(turns):
        messages.append({"role": "user", "content": f"{name} asks {number}"})
        while (answer := served.chat(*messages, max_tokens=200)).status_code == 429:
            pass
        assert answer.status_code == 200, answer.text
        assert session in ("", answer.headers["x-session-id"])
        session = answer.headers["x-session-id"]
        messages.append(answer.json()["choices"][0]["message"])
        assert messages[-1]["content"] == f"{name} asks {number}"
    return session


def test_a_thousand_hostile_requests_harm_nobody(renderer: Renderer, chatml: Any, tmp_path: Path):
    engine = SpokenEngine(chatml, last_user)
    bounds = {"read_seconds": 1.0, "max_context": 2048, "max_requests": 32, "max_sessions": 4096, "record": tmp_path}
    with gateway_at(engine, renderer, **bounds) as served, ThreadPoolExecutor(8) as clients:
        hostile = [clients.submit(lambda seed: Counter(attack(served.port, 250, seed)), seed) for seed in range(4)]
        honest = [clients.submit(an_honest_dialogue, served, f"client {one}", 6) for one in range(4)]
        names = {f"client {number}": one.result() for number, one in enumerate(honest)}
        statuses = sum((one.result() for one in hostile), Counter())
        assert statuses.total() == 1000
        assert 500 not in statuses, statuses
        assert {400, 413} <= {*statuses}
        served.idle()
        eventually(lambda: engine.live == 0)
        for name, session in names.items():
            (dialogue,) = served.client.get(f"/v1/sessions/{session}").json()["branches"]
            assert (dialogue["turns"], dialogue["origin"]) == (6, "began"), name
        assert served.client.get("/health").status_code == 200
    asked = 0
    for episode in read_episodes(tmp_path / "episodes" / "step_000001.jsonl"):
        TokenView.of(episode)
        said = {message.content.split(" asks ")[0] for message in episode.messages if " asks " in message.content}
        assert len(said) <= 1
        asked += said != set()
    assert asked == 4


def test_hostile_requests_leave_no_slot_of_the_local_engine_taken(tiny_model: Path, renderer: Renderer):
    config = LocalEngineConfig(max_batch=4, max_context=256, threads=1)
    with (
        LocalEngine.from_pretrained(tiny_model, config=config) as engine,
        gateway_at(engine, renderer, read_seconds=1.0, max_requests=16) as served,
    ):
        assert 500 not in Counter(attack(served.port, 150, 7))
        served.idle()
        eventually(lambda: engine.live == 0)
        prompt = renderer.initial([{"role": "user", "content": "What is 12 + 34?"}])
        sampling = Sampling(max_tokens=24, seed=5, stop_token_ids=renderer.stop_token_ids)
        direct = asyncio.run(engine.generate(TurnRequest(prompt, sampling)))
        answer = served.chat("What is 12 + 34?", max_tokens=24, seed=5).json()
        assert answer["choices"][0]["message"]["content"] == renderer.decode(direct.token_ids)


def test_a_slot_that_stays_in_use_is_noticed(renderer: Renderer, chatml: Any, monkeypatch: Any):
    engine = SpokenEngine(chatml, held=True)
    with gateway_at(engine, renderer, max_requests=4) as served:
        monkeypatch.setattr(served.gateway.admission, "in_use", 1)
        with pytest.raises(AssertionError, match="in time"):
            served.idle(0.2)


def test_the_end_of_the_server_waits_for_nobody_for_ever(renderer: Renderer, chatml: Any):
    engine = SpokenEngine(chatml, held=True)
    with ThreadPoolExecutor(2) as clients:
        with gateway_at(engine, renderer, grace_seconds=1.0) as served:
            asked = [clients.submit(served.chat, "x", stream=stream) for stream in (True, False)]
            eventually(lambda: engine.live == 2)
        assert engine.live == 0
        for one in asked:
            error = one.exception()
            assert error is not None or "[DONE]" not in one.result().text
