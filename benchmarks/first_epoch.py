"""Compare a training's first epoch with a store warm-started from another run and with an empty store.

Each run trains the demo's warm-started policy in this process (``trained.training``): turntree's local engine samples,
and one step of GRPO follows each batch. The imported turns come from a run with other seeds, and from one with other
seeds and another learning rate. The control imports the former's turns with shuffled tokens. Drafts change no token, so
the sampled tokens are compared too.

All runs draft up to 12 nodes per request and step: an adaptive engine's drafts depend on the machine's speed.

    python benchmarks/first_epoch.py --json benchmarks/results/first_epoch.json
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common.provenance import provenance
from common.script import arguments, keep
from trained.snapshots import ENV
from trained.training import Player, Setting, Trainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
from turntree.agents.files import json_value
from turntree.agents.loop.renderer import Renderer
from turntree.agents.yaml_files import read_yaml
from turntree.configs import __file__ as configs
from turntree.spec_tree import ForestConfig
from turntree.spec_tree.store.snapshot import read_snapshot, write_snapshot

CONTEXT = 192


@dataclass(slots=True)
class Run:
    tokens: list[int] = field(default_factory=list)  #: tokens of each training step
    verify_steps: list[int] = field(default_factory=list)  #: forward passes of these turns
    rewards: list[float] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    past: dict[str, float] = field(default_factory=dict)  #: counters of imported turns

    def figures(self) -> dict[str, Any]:
        steps = [tokens / passes for tokens, passes in zip(self.tokens, self.verify_steps, strict=True)]
        whole = {"tokens": sum(self.tokens), "forward passes": sum(self.verify_steps)}
        per_pass = {
            "tokens per forward pass": whole["tokens"] / whole["forward passes"],
            "of each training step": steps,
        }
        return {**whole, **per_pass, "rewards": self.rewards, **self.imported}


def train(setting: Setting, *, epochs: int, seed: int, past: str = "", save: str = "") -> Run:
    # ``save`` is the file of the store at the end.
    policy, run = warm_started_policy(), Run()
    trainer = Trainer(AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32), setting)
    player = Player(setting, Renderer(AutoTokenizer.from_pretrained(policy)))
    config = LocalEngineConfig(
        max_batch=setting.batch * setting.samples,
        max_context=CONTEXT,
        dtype="float32",
        speculation=Speculation(max_nodes=12, max_depth=12, adaptive=False),
    )
    with LocalEngine.from_pretrained(str(policy), config=config, forest=ForestConfig(import_turns=past)) as engine:
        for step in range(epochs * setting.steps_per_epoch):
            before = engine.stats()
            episodes = player.play(engine, step, seed)
            counted = engine.stats() - before
            run.tokens.append(counted.tokens)
            run.verify_steps.append(counted.verify_steps)
            run.rewards.append(float(np.mean([episode.reward for episode in episodes])))
            run.said.append([[turn.completion.token_ids for turn in episode.turns] for episode in episodes])
            trainer.update(episodes)
            engine.update_weights(trainer.named(), version=step + 1)
        assert engine.forest is not None
        run.past = engine.forest.imported_counters()
        if save:
            engine.forest.save(save)
    return run


def shuffled(store: str, to: str) -> str:
    snapshot, random = read_snapshot(Path(store)), np.random.default_rng(0)
    tokens, ends = snapshot.held.hot_tokens.copy(), np.cumsum(snapshot.held.hot_length)
    for start, stop in zip(ends - snapshot.held.hot_length, ends, strict=True):
        random.shuffle(tokens[start:stop])
    write_snapshot(Path(to), snapshot._replace(held=snapshot.held._replace(hot_tokens=tokens)))
    return to


def measure(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    sizes = {"tasks": args.tasks, "batch": args.batch, "samples": args.samples}
    env_kwargs = read_yaml(Path(configs).parent / "demo.yaml")["turntree"]["env_kwargs"]
    env_kwargs["limits"]["max_context_tokens"] = CONTEXT
    setting = Setting(env=ENV, env_kwargs=env_kwargs, **sizes, learning_rate=5e-4)
    slower = replace(setting, learning_rate=setting.learning_rate * args.factor)
    seeds, rate = f"{folder}/seeds.npz", f"{folder}/rate.npz"
    train(setting, epochs=args.epochs, seed=1, save=seeds)
    train(slower, epochs=args.epochs, seed=2, save=rate)
    stores = {
        "other seeds": seeds,
        "other seeds and learning rate": rate,
        "control: shuffled tokens": shuffled(seeds, f"{folder}/shuffled.npz"),
    }
    cold = train(setting, epochs=1, seed=0)
    rows = {"empty store": cold.figures()}
    for name, store in stores.items():
        run = train(setting, epochs=1, seed=0, past=store)
        rows[name] = run.figures()
        rows[name]["times the empty store's"] = (
            rows[name]["tokens per forward pass"] / rows["empty store"]["tokens per forward pass"]
        )
        rows[name]["tokens equal"] = run.said == cold.said
        print(name, rows[name], flush=True)
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tasks", type=int, default=32, help="tasks of an epoch")
    parser.add_argument("--batch", type=int, default=8, help="tasks of a step")
    parser.add_argument("--samples", type=int, default=8, help="episodes of a task")
    parser.add_argument("--epochs", type=int, default=2, help="of the runs whose stores are drafted from")
    parser.add_argument("--factor", type=float, default=0.3, help="of the other learning rate to this one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args, folder)
    for name, row in rows.items():
        print(name)
        for key, value in row.items():
            print(f"  {key}: {value:.3f}" if isinstance(value, float) else f"  {key}: {value}")
    keep(args.json, json_value({**provenance(["torch", "transformers", "numba", "numpy"]), "figures": rows}))


if __name__ == "__main__":
    main()
