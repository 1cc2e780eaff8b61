"""Rows of the exactness table for the local engine: tiny random Llamas in float64.

Plain decoding here is the engine's own with one request at a time, no store and no draft; the tests hold that to the
array functions and the model's own attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from laws import rule_draws
from laws.claims import LEVEL, Row
from turntree.agents.engines.local import LocalEngineConfig, Speculation
from turntree.agents.engines.local import sampling as emission
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.protocol import Completion, Sampling
from turntree.spec_tree import DialogueState, ForestConfig, SpecForest

SIZE, MODELS, TURNS = 32, 4, 40
HOW = Sampling(temperature=0.9, top_p=0.95, min_p=0.02, repetition_penalty=1.1, frequency_penalty=0.2, max_tokens=24)


def policy(seed: int, size: int = SIZE, moved: float = 0.0) -> Policy:
    """A random policy, its weights moved a little as by an update."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=size, max_position_embeddings=128, **shape)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0).add_(moved * torch.randn_like(parameter))
    return Policy(model)


def sample(
    core: EngineCore, prompts: Sequence[list[int]], how: Sampling, turn_drafts: Sequence[Sequence[int]] | None = None
) -> list[Completion]:
    """A turn after each prompt, request ``i`` with seed ``i``."""
    done: dict[int, Completion] = {}
    for i, prompt in enumerate(prompts):
        core.add(
            Request(
                prompt=prompt, sampling=how, state=DialogueState.from_tokens(prompt), seed=i,
                deliver=lambda r, i=i: done.__setitem__(i, r.completion()), turn_draft=list(turn_drafts[i]) if
                turn_drafts else [],
            )
        )  # fmt: skip
    while core.busy:
        core.step()
    return [done[i] for i in range(len(prompts))]


@contextmanager
def noise_by_draft():
    """Fault: the noise of a token depends on its place in the step."""
    right = emission.race
    with mock.patch.object(emission, "race", lambda p, seeds, at: right(p, seeds, np.arange(len(p)))):
        yield


@contextmanager
def shared_noise():
    """Fault: all positions of a turn share their noise."""
    right = emission.race
    with mock.patch.object(emission, "race", lambda p, seeds, at: right(p, seeds, np.zeros_like(at))):
        yield


def differing(seed: int, broken: bool = False) -> tuple[int, float]:
    """Turns under moved weights that differ from plain decoding, and tokens per forward pass of the drafted ones."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, SIZE, size=int(rng.integers(2, 20))).tolist() for _ in range(TURNS)]
    alone = LocalEngineConfig(max_batch=1, max_context=64, speculation=None)
    stored = sample(EngineCore(policy(seed), alone, None), prompts, HOW)
    plain = [t.token_ids for t in sample(EngineCore(policy(seed, moved=0.001), alone, None), prompts, HOW)]
    config = LocalEngineConfig(
        max_batch=9, max_context=64, prefill_chunk=10, speculation=Speculation(adaptive=False, min_probability=0.05)
    )
    core = EngineCore(policy(seed, moved=0.001), config, SpecForest(ForestConfig()))
    turn_drafts = [t.token_ids for t in stored]
    if broken:
        with noise_by_draft():
            turns = sample(core, prompts, HOW, turn_drafts)
    else:
        turns = sample(core, prompts, HOW, turn_drafts)
    steps = core.stats.tokens / core.stats.verify_steps
    return sum(t.token_ids != p for t, p in zip(turns, plain, strict=True)), steps


def chi_square(draws: int, broken: bool = False) -> float:
    """p-value of two-token turns, drafted from each other, against the model's joint law."""
    size, prompt = 5, [1, 2, 3]
    model = policy(1, size)
    model.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        p = torch.softmax(model.model(torch.tensor([[*prompt, t] for t in range(size)])).logits, -1).numpy()
    law = (p[0, 2][:, None] * p[:, 3]).reshape(-1).astype(np.float64)
    config = LocalEngineConfig(
        max_batch=draws // 20, max_context=8, parked_slots=0, speculation=Speculation(adaptive=False)
    )
    core = EngineCore(policy(1, size), config, SpecForest(ForestConfig()))
    if broken:
        with shared_noise():
            turns = sample(core, [prompt] * draws, Sampling(max_tokens=2))
    else:
        turns = sample(core, [prompt] * draws, Sampling(max_tokens=2))
    return rule_draws.chi_square(np.array([turn.token_ids for turn in turns]), law / law.sum()).p_value


def rows(draws: int = 6_000) -> Iterator[Row]:
    """What the engine is held to."""
    found = [differing(seed) for seed in range(MODELS)]
    wrong = sum(n for n, _ in found)
    faulty = differing(0, broken=True)[0]
    yield Row(
        rule="local engine, float64: seeded turns from stored turns of older weights and store trees",
        level="B",
        statistic="differing",
        value=wrong,
        control="noise keyed by the place in the draft",
        control_value=faulty,
        holds=wrong == 0 and faulty > TURNS // 2,
        note=f"of {MODELS * TURNS} turns (control: {TURNS}); "
        f"{np.mean([s for _, s in found]):.1f} tokens per forward pass",
    )
    value, control = chi_square(draws), chi_square(2000, broken=True)
    power = rule_draws.power(draws, 25, 0.05, LEVEL)
    yield Row(
        rule="local engine: turns drafted from their siblings follow the model's law",
        level="A",
        statistic="p",
        value=value,
        control="noise that positions share",
        control_value=control,
        holds=value > LEVEL and control < LEVEL,
        note=f"{draws} turns; power {power:.3f} at TV 0.05",
    )
