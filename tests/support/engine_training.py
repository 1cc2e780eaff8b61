"""Real trainings by verl's own servers of vLLM and SGLang on the CPU, and what is left in their checkpoints."""

from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_training import PROMPTS, SAMPLES, Training, run_training
from tiny_vllm import ENVIRONMENT, save_policy
from training_engines import engine_options

from turntree.agents.engines.sglang.settings import VARIABLE
from turntree.agents.verl.records.checkpoint_state import checkpoint_folder, state_folder
from turntree.spec_tree.store.snapshot import read_snapshot

VERSIONS = {"vllm": ("0.24", "0.28"), "sglang": ("0.5.12",)}
"""What verl 0.9.1 trains with here; make test-vllm and make test-sglang have them."""
TEMPERATURE = 0.2
"""At which an untrained policy says a thing twice."""


def train_engine(
    root: Path,
    policy: Path,
    engine: str,
    use: str,
    *more: str,
    env: str = "Repeating",
    turns: int = 3,
    steps: int = 3,
) -> Training:
    """Train with an engine of verl's in an environment of ``trained_envs``; ``use`` is an option of earlier turns."""
    section = "actor_rollout_ref.rollout.engine_kwargs.turntree.speculation"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)  # the configuration brings it
        patch.setenv("TORCHDYNAMO_DISABLE", ENVIRONMENT["TORCHDYNAMO_DISABLE"])
        return run_training(
            policy,
            root,
            env,
            *engine_options(engine),
            *("size=tiny", "env=arithmetic", "algorithm=grpo", use),
            f"turntree.env_kwargs.turns={turns}",
            "data.max_response_length=192",
            f"actor_rollout_ref.rollout.max_num_seqs={4 * PROMPTS * SAMPLES if 'run_ahead' in use else 16}",
            f"actor_rollout_ref.rollout.temperature={TEMPERATURE}",
            "actor_rollout_ref.actor.optim.lr=0.0001",
            "algorithm.rollout_correction.bypass_mode=false",  # the actor's own log-probabilities, to compare
            *(f"{section}.min_probability=0.0", f"{section}.adaptive=false"),  # timing decides nothing
            *more,
            config=None,
            steps=steps,
        )


def policy_for(engine: str, chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, if this environment has the engine; else the test is skipped."""
    try:
        installed = version(engine)
    except PackageNotFoundError:
        installed = ""
    if not installed.startswith(VERSIONS[engine]):
        pytest.skip(f"verl 0.9.1 trains with {engine} {' or '.join(VERSIONS[engine])}, {installed or 'none'} is here")
    end = chatml.convert_tokens_to_ids("<|im_end|>")
    folder = tmp_path_factory.mktemp("policy")
    policy = save_policy(folder, len(chatml), eos_token_id=end, tie_word_embeddings=True)  # as small models are
    chatml.save_pretrained(policy)
    return policy


def stored(training: Training, step: int, rank: int) -> Counter[tuple[int, ...]]:
    """The turns in a replica's store at a checkpoint, with the state of each before its tokens."""
    held = read_snapshot(state_folder(checkpoint_folder(training.folder.checkpoints, step), rank) / "forest.npz").held
    assert not len(held.cold_state), "all are in use yet"
    turns = np.split(held.hot_tokens, np.cumsum(held.hot_length)[:-1])
    states = held.keys[held.hot_state, 0].tolist()
    return Counter((state, *turn.tolist()) for state, turn in zip(states, turns, strict=True))


def played(training: Training, *steps: int) -> Counter[tuple[int, ...]]:
    """Tokens of the turns of some steps."""
    records = (record for step in steps for record in training.records(step).values())
    return Counter(turn.completion.token_ids for record in records for turn in record.episode.turns)
