"""The client against a real ``sglang serve`` with turntree's worker in it: one server for the whole module."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_sglang import CPU_ARGS
from policy_law import PolicyLaw
from served import free_port, serving
from tiny_llama import save_tiny_llama

from turntree.agents.engines.protocol import FinishReason, Sampling
from turntree.agents.engines.server_client import ServerError
from turntree.agents.engines.sglang.server import SglangServer
from turntree.agents.engines.sglang.settings import VARIABLE
from turntree.spec_tree import DialogueState
from turntree.spec_tree.transforms import Transforms, law

pytestmark = pytest.mark.sglang

PROMPT = (1, 2, 3, 4, 5, 6)
CONTEXT = 200
STATE = DialogueState(exact=7, task="served")
_SGLANG = "from sglang.cli.main import main; main()"
"""The command ``sglang``, in this environment."""


@pytest.fixture(scope="module")
def folder(chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save_tiny_llama(tmp_path_factory.mktemp("model"), vocabulary=len(chatml))
    chatml.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def policy(folder: Path) -> PolicyLaw:
    return PolicyLaw(folder)


@pytest.fixture(scope="module")
def engine(folder: Path, chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    pytest.importorskip("sglang", reason="needs SGLang; see make test-sglang")
    port = free_port()
    given = {**CPU_ARGS, "context_length": CONTEXT, "speculative_algorithm": "TURNTREE"}
    flags = [(f"--{name.replace('_', '-')}", value) for name, value in given.items()]
    command = [
        *(sys.executable, "-c", _SGLANG, "serve", "--model-path", str(folder)),
        *("--host", "127.0.0.1", "--port", str(port), "--speculative-num-draft-tokens", "8"),
        *(word for flag, value in flags for word in ([flag] if value is True else [flag, str(value)])),
    ]
    log = tmp_path_factory.mktemp("server") / "log.txt"
    environment = {VARIABLE: json.dumps({"adaptive": False, "min_probability": 0.02})}

    def found() -> SglangServer | None:
        import httpx

        url = f"http://127.0.0.1:{port}"
        try:
            up = httpx.get(f"{url}/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return None
        return SglangServer(url, vocabulary=len(chatml)) if up else None

    with serving(command, found, log, environment) as client, client:
        yield client


async def test_a_seed_says_over_http_what_the_noise_says_drafted_or_not(engine, policy):
    wanted = policy.seeded(PROMPT, 20, 2**63 + 7, lambda logits: law(logits, Transforms()))
    turns = []
    for draft in ((), (), wanted):
        state = None if draft else STATE
        turns.append(await engine.generate(PROMPT, Sampling(max_tokens=20, seed=2**63 + 7), state=state, draft=draft))
    assert [list(turn.token_ids) for turn in turns] == [wanted] * 3
    assert turns[0].logprobs == pytest.approx(policy.logprobs(PROMPT, wanted), abs=2e-4)
    assert turns[0].finish_reason is FinishReason.LENGTH


async def test_each_turn_says_what_was_drafted_and_kept(engine):
    for _ in range(2):
        turn = await engine.generate(PROMPT, Sampling(max_tokens=20, temperature=0), state=STATE)
    assert 0 < turn.draft.accepted == sum(turn.accepted) <= turn.draft.drafted
    assert turn.draft.verify_steps == 20 - turn.draft.accepted < 10
    assert turn.cached_tokens >= len(PROMPT) - 1


async def test_given_tokens_are_scored_as_the_model_says(engine, policy):
    tokens = (5, 6, 7, 8)
    scores = await engine.score(PROMPT, tokens, Sampling(), top=3)
    assert scores.logprobs == pytest.approx(policy.logprobs(PROMPT, tokens), abs=2e-4)
    laws = [policy.logits([[*PROMPT, *tokens[:n]]])[0] for n in range(len(tokens) + 1)]
    assert scores.top.ids.tolist() == (-np.array(laws)).argsort(-1)[:, :3].tolist()


async def test_a_prompt_that_does_not_fit_is_refused_in_the_servers_words(engine):
    with pytest.raises(ServerError, match="longer than the model's context length"):
        await engine.generate([1] * (CONTEXT + 1), Sampling(max_tokens=4))


async def test_new_weights_say_what_they_say_elsewhere(engine, policy, chatml, tmp_path):
    """The last test: the server has other weights then."""
    folder = save_tiny_llama(tmp_path, vocabulary=len(chatml), seed=1)
    await asyncio.to_thread(engine.update_weights_from_disk, folder)
    turn = await engine.generate(PROMPT, Sampling(max_tokens=12, temperature=0), state=STATE)
    assert list(turn.token_ids) == PolicyLaw(folder).greedy(PROMPT, 12) != policy.greedy(PROMPT, 12)
    assert (turn.weights_version, turn.cached_tokens) == (1, 0)
