import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gymnasium
import pytest
from arithmetic_eval import evaluated
from engine_checks import EngineChecks
from served import serving
from tiny_vllm import ENVIRONMENT

from turntree.agents.engines.chat_server import ChatServer
from turntree.agents.engines.engine_choice import ToolCalls
from turntree.agents.engines.protocol import Sampling
from turntree.agents.engines.server_client import ServerError, free_port
from turntree.agents.engines.vllm.server import VllmServer
from turntree.agents.engines.vllm.settings import speculative_config
from turntree.agents.episodes.episode import StopReason
from turntree.agents.loop.chat_rollout import chat_rollout
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.envs import Limits, make

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def url() -> str:
    return f"http://127.0.0.1:{free_port()}/v1"


@pytest.fixture(scope="module")
def engine(folder: Path, url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    log = tmp_path_factory.mktemp("server") / "log.txt"
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder)),
        *("--host", "127.0.0.1", "--port", str(urlsplit(url).port), "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", str(TestVllmServer.context), "--max-num-seqs", "8", "--block-size", "32"),
        *("--kv-cache-memory-bytes", str(1 << 26)),
        *("--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1", "--enable-prompt-tokens-details"),
        *("--speculative-config", json.dumps(speculative_config(4))),
    ]
    with serving(command, lambda: found(url), log, ENVIRONMENT) as client, client:
        yield client


def found(url: str) -> VllmServer | None:
    try:
        return VllmServer(url)
    except ServerError:
        return None


class TestVllmServer(EngineChecks):
    context = 512
    end = None


def test_a_model_is_evaluated_inside_a_server(engine: VllmServer, url: str, folder: Path, tmp_path: Path) -> None:
    evaluated("vllm", url, folder, tmp_path / "episodes.jsonl")


async def test_messages_are_answered_as_the_tokens_of_their_template_are(engine, url, chatml, folder):
    env = make("turntree/Arithmetic-v0", system_prompt="Add.", describes_tools=True)
    limits = Limits(max_turns=3, max_turn_tokens=8)
    greedy = Sampling(temperature=0)
    by_tokens = await rollout(env, engine, Renderer(chatml), limits, index=3, sampling=greedy)
    async with ChatServer(url) as server:
        assert server.model == str(folder)
        # The template leaves the tools out, so that as messages they must not be sent at all.
        plain = WithoutTools(env)
        by_messages = await chat_rollout(plain, server, limits, index=3, sampling=greedy)
        refused = await chat_rollout(env, server, limits, index=3, sampling=greedy)
        told = await chat_rollout(env, server, limits, tool_calls=ToolCalls.TEXT, index=3, sampling=greedy)
    assert by_messages.failure == ""
    # vLLM leaves out a character that was cut off at the end, the renderer shows that there was one.
    said, meant = ([turn.text.rstrip("\ufffd") for turn in one.turns] for one in (by_messages, by_tokens))
    assert said == meant
    assert len("".join(said)) > 4
    assert all(turn.text_only for turn in by_messages.turns)
    assert "--tool-calls text" in refused.failure
    assert told.stop_reason in (StopReason.DONE, StopReason.MAX_TOKENS)


async def test_a_dialogue_that_fills_the_context_ends_as_one(engine: VllmServer, url: str) -> None:
    env = make("turntree/Arithmetic-v0", system_prompt="word " * 600)
    async with ChatServer(url) as server:
        episode = await chat_rollout(WithoutTools(env), server, Limits(max_turn_tokens=8), index=0)
    assert (episode.stop_reason, episode.turns) == (StopReason.MAX_TOKENS, ())


class WithoutTools(gymnasium.Wrapper[str, str, str, str]):
    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return observation, {**info, "tools": []}
