"""The first epoch of a training whose store begins with the turns of another run, beside that of an empty store.

Each run trains the demo's warm-started policy in this process: turntree's local engine samples, and one step of the
policy gradient with advantages relative to the samples of a task (GRPO's, on-policy) follows each batch. The past is a
run with other seeds, and one with other seeds and another learning rate. The control has the turns of the former with
their tokens shuffled. Drafts change no token, so all that was sampled is compared too.

All draft up to 12 nodes a request and step: how many an adaptive engine drafts depends on the machine's speed.

    python benchmarks/first_epoch.py --json benchmarks/results/first_epoch.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common.provenance import provenance
from transformers import AutoModelForCausalLM, AutoTokenizer

from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
from turntree.agents.engines.protocol import Sampling, derive_seed
from turntree.agents.episodes.episode import Episode
from turntree.agents.evaluation.evaluate import evaluate
from turntree.agents.evaluation.run import Planned, plan
from turntree.agents.evaluation.suite import EvalTask
from turntree.agents.files import json_value
from turntree.agents.loop.renderer import Renderer
from turntree.agents.yaml_files import read_yaml
from turntree.configs import __file__ as configs
from turntree.envs.limits import Limits
from turntree.spec_tree import ForestConfig
from turntree.spec_tree.store.snapshot import read_snapshot, write_snapshot

_RATE = 5e-4
"""The demo's learning rate."""
_CONTEXT = 192


@dataclass(slots=True)
class Run:
    """What a training sampled."""

    tokens: list[int] = field(default_factory=list)
    """Tokens of each training step."""
    verify_steps: list[int] = field(default_factory=list)
    """Forward passes of their turns."""
    rewards: list[float] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    """The tokens of every turn."""
    past: dict[str, float] = field(default_factory=dict)
    """The store's counters of turns of other runs."""

    def figures(self) -> dict[str, Any]:
        steps = [tokens / passes for tokens, passes in zip(self.tokens, self.verify_steps, strict=True)]
        whole = {"tokens": sum(self.tokens), "verify steps": sum(self.verify_steps)}
        per_step = {"tokens per step": whole["tokens"] / whole["verify steps"], "of each training step": steps}
        return {**whole, **per_step, "rewards": self.rewards, **self.past}


def update(model: Any, optimizer: Any, episodes: Sequence[Episode], samples: int) -> None:
    """One step of the policy gradient."""
    rewards = torch.tensor([episode.reward for episode in episodes]).reshape(-1, samples)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    ids = torch.zeros(len(episodes), _CONTEXT, dtype=torch.long)
    mask = torch.zeros(len(episodes), _CONTEXT)
    for row, episode in enumerate(episodes):
        for turn in episode.turns:  # each prompt has all that came before
            start, said = len(turn.prompt_ids), turn.completion.token_ids
            ids[row, : start + len(said)] = torch.tensor([*turn.prompt_ids, *said])
            mask[row, start : start + len(said)] = 1.0
    logprobs = model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    loss = -(advantages[:, None] * logprobs * mask[:, 1:]).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


async def train(
    args: argparse.Namespace, planned: Planned, *, epochs: int, seed: int, rate: float, past: str = "", save: str = ""
) -> Run:
    """Train the policy; ``save`` is the file of the store at the end."""
    policy, run = warm_started_policy(), Run()
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    renderer = Renderer(AutoTokenizer.from_pretrained(policy))
    config = LocalEngineConfig(
        max_batch=args.batch * args.samples,
        max_context=_CONTEXT,
        dtype="float32",
        speculation=Speculation(max_nodes=12, max_depth=12, adaptive=False),
    )
    with LocalEngine.from_pretrained(str(policy), config=config, forest=ForestConfig(past=past)) as engine:
        batches = [range(first, first + args.batch) for first in range(0, args.tasks, args.batch)]
        for step, tasks in enumerate(batches * epochs):
            before = engine.stats()
            episodes = await evaluate(
                planned.make_env,
                engine,
                renderer,
                tasks,
                limits=planned.limits,
                sampling=Sampling(temperature=1.0),
                seed=derive_seed(seed, step),
                concurrency=args.batch * args.samples,
                samples=args.samples,
            )
            counted = engine.stats() - before
            run.tokens.append(counted.tokens)
            run.verify_steps.append(counted.verify_steps)
            run.rewards.append(float(np.mean([episode.reward for episode in episodes])))
            run.said.append([[turn.completion.token_ids for turn in episode.turns] for episode in episodes])
            update(model, optimizer, episodes, args.samples)
            engine.update_weights(list(model.named_parameters()), version=step + 1)
        assert engine.forest is not None
        run.past = engine.forest.past_counters()
        if save:
            engine.forest.save(save)
    return run


def shuffled(store: str, to: str) -> str:
    """A store's file with the tokens of each turn in another order."""
    snapshot, random = read_snapshot(Path(store)), np.random.default_rng(0)
    tokens, ends = snapshot.held.hot_tokens.copy(), np.cumsum(snapshot.held.hot_length)
    for start, stop in zip(ends - snapshot.held.hot_length, ends, strict=True):
        random.shuffle(tokens[start:stop])
    write_snapshot(Path(to), snapshot._replace(held=snapshot.held._replace(hot_tokens=tokens)))
    return to


async def measure(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    env_args = read_yaml(Path(configs).parent / "demo.yaml")["turntree"]["env_kwargs"]
    env_args["limits"] = Limits(**env_args["limits"])
    sizes: dict[str, Any] = {"count": args.tasks, "max_tokens": 16, "max_context": _CONTEXT}
    planned = plan(EvalTask(env="turntree/Arithmetic-v0", env_args=env_args, **sizes))
    stores = {
        "other seeds": f"{folder}/seeds.npz",
        "other seeds and learning rate": f"{folder}/rate.npz",
    }
    await train(args, planned, epochs=args.epochs, seed=1, rate=_RATE, save=stores["other seeds"])
    other = stores["other seeds and learning rate"]
    await train(args, planned, epochs=args.epochs, seed=2, rate=_RATE * args.factor, save=other)
    stores["control: shuffled tokens"] = shuffled(stores["other seeds"], f"{folder}/shuffled.npz")
    cold = await train(args, planned, epochs=1, seed=0, rate=_RATE)
    rows = {"empty store": cold.figures()}
    for name, store in stores.items():
        run = await train(args, planned, epochs=1, seed=0, rate=_RATE, past=store)
        rows[name] = run.figures()
        rows[name]["times the empty store's"] = rows[name]["tokens per step"] / rows["empty store"]["tokens per step"]
        rows[name]["tokens equal"] = run.said == cold.said
        print(name, rows[name], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=32, help="tasks of an epoch")
    parser.add_argument("--batch", type=int, default=8, help="tasks of a step")
    parser.add_argument("--samples", type=int, default=8, help="episodes of a task")
    parser.add_argument("--epochs", type=int, default=2, help="of the runs whose stores are drafted from")
    parser.add_argument("--factor", type=float, default=0.3, help="of the other learning rate to this one")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(args, folder))
    for name, row in rows.items():
        print(name)
        for key, value in row.items():
            print(f"  {key}: {value:.3f}" if isinstance(value, float) else f"  {key}: {value}")
    if args.json is not None:
        about = provenance(["torch", "transformers", "numba", "numpy"])
        args.json.write_text(json.dumps(json_value({**about, "figures": rows}), indent=1) + "\n")


if __name__ == "__main__":
    main()
