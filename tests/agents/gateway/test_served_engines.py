import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateways import streamed
from machine_speed import patience
from policy_law import PolicyLaw
from served_command import served_command
from tiny_llama import save_tiny_llama

from turntree.agents.evaluation.checkpoint import Checkpoint
from turntree.agents.loop.renderer import Renderer

TOKENS = 12
USER = [{"role": "user", "content": "12+30"}]
AGAIN = {"role": "user", "content": "and one more?"}
BODY = {"model": "tiny", "max_tokens": TOKENS, "temperature": 0}


def check_dialogue(base_url: str, renderer: Renderer, policy: PolicyLaw) -> None:
    first = renderer.initial(USER)
    result = policy.greedy(first, TOKENS)
    second = renderer.extend(first, result, [AGAIN])
    wanted = [renderer.decode(result), renderer.decode(policy.greedy(second, TOKENS))]
    with httpx.Client(base_url=base_url, timeout=patience(60)) as client:
        began = client.post("/chat/completions", json={**BODY, "messages": USER})
        assert began.status_code == 200, began.text
        session, found = began.headers["x-session-id"], began.json()
        assert found["choices"][0]["message"]["content"] == wanted[0]
        assert found["usage"]["completion_tokens"] == TOKENS
        assert found["usage"]["completion_tokens_details"]["verify_steps"] == TOKENS  # nothing was known yet
        dialogue = [*USER, {"role": "assistant", "content": wanted[0]}, AGAIN]
        went_on = client.post("/chat/completions", json={**BODY, "messages": dialogue})
        assert went_on.headers["x-session-id"] == session
        assert went_on.json()["choices"][0]["message"]["content"] == wanted[1]
        steps = []
        while not steps or (steps[-1] == TOKENS and len(steps) < 20):  # until the budget tries what was said before
            again = client.post("/chat/completions", json={**BODY, "messages": USER})
            assert again.headers["x-session-id"] != session
            assert again.json()["choices"][0]["message"]["content"] == wanted[0]
            steps.append(again.json()["usage"]["completion_tokens_details"]["verify_steps"])
        assert steps[-1] < TOKENS
        pieces = client.post("/chat/completions", json={**BODY, "messages": USER, "stream": True}).text
        assert streamed(pieces) == wanted[0]


def served_dialogue(folder: Path, log: Path, *options: str) -> None:
    renderer, policy = Renderer(Checkpoint.open(str(folder)).tokenizer), PolicyLaw(folder)
    bounds = ["--max-context", "256", "--max-batch", "4", "--max-stored-tokens", "2048"]
    with served_command(folder, log, *bounds, *options) as base_url:
        check_dialogue(base_url, renderer, policy)


@pytest.fixture
def folder(chatml: Any, tmp_path: Path) -> Path:
    path = save_tiny_llama(tmp_path / "model", vocabulary=len(chatml))
    chatml.save_pretrained(path)
    return path


def test_the_local_engine_behind_the_gateway(folder: Path, tmp_path: Path) -> None:
    served_dialogue(folder, tmp_path / "log.txt")
    assert "Traceback" not in (tmp_path / "log.txt").read_text(), "it ended in order at SIGTERM"


@pytest.mark.vllm
@pytest.mark.once
@pytest.mark.release
def test_vllm_behind_the_gateway(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiny_vllm import ENVIRONMENT, MEMORY

    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    engine_args = {**MEMORY, "enforce_eager": True}
    served_dialogue(folder, tmp_path / "log.txt", "--engine", "vllm", "--engine-args", json.dumps(engine_args))


@pytest.mark.sglang
@pytest.mark.once
@pytest.mark.release
def test_sglang_behind_the_gateway(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cpu_sglang import beside, prepare

    monkeypatch.setattr(os, "environ", os.environ.copy())
    prepare({"adaptive": False, "min_probability": 0.02})
    engine_args = beside("dtype", "max_running_requests")
    served_dialogue(folder, tmp_path / "log.txt", "--engine", "sglang", "--engine-args", json.dumps(engine_args))
