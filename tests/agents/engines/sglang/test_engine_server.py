import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from arithmetic_eval import evaluated
from cpu_sglang import CPU_ARGS
from engine_checks import PROMPT, EngineChecks, state
from machine_speed import patience
from policy_law import PolicyLaw
from served import serving
from tiny_llama import save_tiny_llama

from turntree.agents.engines.protocol import Sampling, TurnRequest
from turntree.agents.engines.server_client import free_port
from turntree.agents.engines.sglang.server import SglangServer
from turntree.agents.engines.sglang.settings import VARIABLE

pytestmark = [pytest.mark.sglang, pytest.mark.release]  # test_engine.py checks the engine, test_server.py the client

_SGLANG = "from sglang.cli.main import main; main()"
"""The command ``sglang``, in this environment."""


@pytest.fixture(scope="module")
def url() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def engine(folder: Path, url: str, chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    given = {**CPU_ARGS, "context_length": TestSglangServer.context, "speculative_algorithm": "TURNTREE"}
    given["nccl_port"] = free_port()
    flags = [(f"--{name.replace('_', '-')}", value) for name, value in given.items()]
    command = [
        *(sys.executable, "-c", _SGLANG, "serve", "--model-path", str(folder)),
        *("--host", "127.0.0.1", "--port", str(urlsplit(url).port), "--speculative-num-draft-tokens", "8"),
        *(word for flag, value in flags for word in ([flag] if value is True else [flag, str(value)])),
    ]
    log = tmp_path_factory.mktemp("server") / "log.txt"
    environment = {VARIABLE: json.dumps({"adaptive": False, "min_probability": 0.02})}

    def found() -> SglangServer | None:
        try:
            up = httpx.get(f"{url}/health", timeout=patience(5)).status_code == 200
        except httpx.HTTPError:
            return None
        return SglangServer(url, vocabulary=len(chatml)) if up else None

    with serving(command, found, log, environment) as client, client:
        yield client


class TestSglangServer(EngineChecks):
    context = 512
    end = None


def test_a_model_is_evaluated_inside_a_server(engine: SglangServer, url: str, folder: Path, tmp_path: Path) -> None:
    turns = evaluated("sglang", url, folder, tmp_path / "episodes.jsonl")
    assert all(len(turn.accepted) == len(turn.token_ids) for turn in turns), "turntree's worker says so of each"


async def test_a_whole_draft_is_reverified_in_one_pass(engine: SglangServer, url: str) -> None:
    request = TurnRequest(PROMPT, Sampling(max_tokens=40, seed=5), state=state("reverified"))
    plain = await engine.generate(request)
    with SglangServer(url, max_context=TestSglangServer.context - 6) as bounded:
        turn = await bounded.generate(replace(request, draft=plain.token_ids))
    assert turn.token_ids == plain.token_ids
    assert turn.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
    assert turn.draft.verify_steps == 1


def test_penalties_are_refused_and_nobody_else_suffers(engine: SglangServer, url: str) -> None:
    def ask(**sampling: float) -> httpx.Response:
        body = {"input_ids": list(PROMPT), "sampling_params": {"max_new_tokens": 4, **sampling}}
        return httpx.post(f"{url}/generate", json=body, timeout=patience(60))

    refused = ask(repetition_penalty=1.2)
    assert refused.status_code == 400
    assert "repetition_penalty must be" in refused.text
    assert ask().status_code == 200


async def test_new_weights_say_what_they_say_elsewhere(engine, policy, chatml, tmp_path):
    # The last test: the server has other weights afterwards.
    folder = save_tiny_llama(tmp_path, vocabulary=len(chatml), seed=1)
    await asyncio.to_thread(engine.update_weights_from_disk, folder)
    turn = await engine.generate(
        TurnRequest(PROMPT, Sampling(max_tokens=12, temperature=0), state=state("new weights"))
    )
    assert list(turn.token_ids) == PolicyLaw(folder).greedy(PROMPT, 12) != policy.greedy(PROMPT, 12)
    assert (turn.weights_version, turn.cached_tokens) == (1, 0)
