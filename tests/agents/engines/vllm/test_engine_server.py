"""The client against a real ``vllm serve`` with turntree's drafter in it: one server for the whole module."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from served import free_port, serving
from tiny_vllm import ENVIRONMENT, chosen, laws_of, race, save_policy

from turntree.agents.chat_rollout import chat_rollout
from turntree.agents.engine_choice import ToolCalls
from turntree.agents.engines.chat_server import ChatServer
from turntree.agents.engines.protocol import FinishReason, Sampling
from turntree.agents.engines.server_client import ServerError
from turntree.agents.engines.vllm.server import VllmServer
from turntree.agents.engines.vllm.settings import speculative_config
from turntree.agents.episode import StopReason
from turntree.agents.renderer import Renderer
from turntree.agents.rollout import rollout
from turntree.envs import Limits, make
from turntree.spec_tree import DialogueState

pytestmark = pytest.mark.vllm

PROMPT = tuple(range(10, 45))
SEEDED = Sampling(max_tokens=12, seed=2**63 + 7)
"""A seed that a JSON reader of doubles would round."""


@pytest.fixture(scope="module")
def folder(chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save_policy(tmp_path_factory.mktemp("model"), len(chatml))
    chatml.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def engine(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    port = free_port()
    log = tmp_path_factory.mktemp("server") / "log.txt"
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder)),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager"),
        *("--max-model-len", "160", "--max-num-seqs", "8", "--block-size", "32"),
        *("--kv-cache-memory-bytes", str(1 << 26)),
        *("--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1", "--enable-prompt-tokens-details"),
        *("--speculative-config", json.dumps(speculative_config(4))),
    ]
    with serving(command, lambda: found(f"http://127.0.0.1:{port}/v1"), log, ENVIRONMENT) as client, client:
        yield client


def found(url: str) -> VllmServer | None:
    """The client, once the server answers."""
    try:
        return VllmServer(url)
    except ServerError:
        return None


async def test_greedy_turns_are_the_models_most_probable_tokens(engine: VllmServer, model: Any) -> None:
    turn = await engine.generate(PROMPT, Sampling(temperature=0, max_tokens=10, top_logprobs=2))
    laws = laws_of(model, PROMPT, turn.token_ids)
    assert turn.token_ids == tuple(laws.argmax(-1)[:-1].tolist())
    assert turn.logprobs == pytest.approx(chosen(laws, turn.token_ids), abs=1e-4)
    assert turn.finish_reason is FinishReason.LENGTH
    assert turn.top is not None
    assert turn.top.ids[:, 0].tolist() == list(turn.token_ids)


async def test_a_seed_says_over_http_what_the_noise_says_drafted_or_not(engine: VllmServer, model: Any) -> None:
    state = DialogueState.from_tokens(PROMPT, task="t")
    turn = await engine.generate(PROMPT, SEEDED, state=state)
    laws = laws_of(model, PROMPT, turn.token_ids)
    assert list(turn.token_ids) == race(laws, 2**63 + 7, 12)
    assert turn.logprobs == pytest.approx(chosen(laws, turn.token_ids), abs=1e-4)
    again = await asyncio.gather(
        *(engine.generate(PROMPT, SEEDED, state=state, draft=draft) for draft in ((), turn.token_ids, (1, 2, 3)))
    )
    assert {other.token_ids for other in again} == {turn.token_ids}


async def test_given_tokens_are_scored_as_the_model_says(engine: VllmServer, model: Any) -> None:
    tokens = (5, 6, 7, 8, 9)
    laws = laws_of(model, PROMPT, tokens)
    scores = await engine.score(PROMPT, tokens, Sampling(), top=3)
    assert scores.logprobs == pytest.approx(chosen(laws, tokens), abs=1e-4)
    assert scores.top is not None
    assert scores.top.ids.tolist() == (-laws).argsort(-1)[:, :3].tolist()


async def test_a_turn_ends_at_its_stop_token_and_the_next_finds_its_keys(engine: VllmServer) -> None:
    turn = await engine.generate(PROMPT, SEEDED)
    stop = turn.token_ids[4]
    stopped = await engine.generate(PROMPT, replace(SEEDED, stop_token_ids=(stop,)))
    assert stopped.token_ids == turn.token_ids[: turn.token_ids.index(stop) + 1]
    assert stopped.finish_reason is FinishReason.STOP
    assert (await engine.generate((*PROMPT, *turn.token_ids), SEEDED)).cached_tokens >= 32


async def test_messages_are_answered_as_the_tokens_of_their_template_are(
    engine: VllmServer, chatml: Any, folder: Path
) -> None:
    """The same episode by messages and by tokens: the server renders and reads as the renderer does."""
    url = engine._client.base_url
    env = make("turntree/Arithmetic-v0", system_prompt="Add.")
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


async def test_a_dialogue_that_fills_the_context_ends_as_one(engine: VllmServer) -> None:
    env = make("turntree/Arithmetic-v0", system_prompt="word " * 200)
    async with ChatServer(engine._client.base_url) as server:
        episode = await chat_rollout(WithoutTools(env), server, Limits(max_turn_tokens=8), index=0)
    assert (episode.stop_reason, episode.turns) == (StopReason.MAX_TOKENS, ())


class WithoutTools(gymnasium.Wrapper[str, str, str, str]):
    """Says of its tools nothing."""

    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return observation, {**info, "tools": []}


async def test_a_prompt_that_does_not_fit_is_refused_in_the_servers_words(engine: VllmServer) -> None:
    assert engine.max_context == 160
    with pytest.raises(ServerError, match="400"):
        await engine.generate((1,) * 200, Sampling())
