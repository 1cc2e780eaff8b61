"""Measure paired evaluation: the interval of a difference, its coverage, and the passes of two checkpoints.

Both checkpoints play the same tasks with the same noise (``turntree eval --against``): turns of the first are drafts
for the second, and trees within a task's samples draft for both. For comparison, both are also evaluated separately, by
plain decoding and with drafts. The control plays the second checkpoint with other noise.

Coverage is simulated 1,000 times with two policies that are equal on the mean of all tasks and draw with the same
noise.

    python benchmarks/paired.py --json benchmarks/results/paired.json   # trains the demo's policy for the checkpoints
    python benchmarks/paired.py BEFORE AFTER --env turntree/GSM8K-v0 --env-args '{"data": "test.jsonl"}'
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common.provenance import provenance
from common.script import arguments, keep
from common.verl_training import trained

from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.engines.engine_choice import EngineChoice, EngineName, open_engine
from turntree.agents.episodes.episode import Episode
from turntree.agents.evaluation.checkpoint import Checkpoint
from turntree.agents.evaluation.evaluate import Playing
from turntree.agents.evaluation.paired import compare, independent_interval, mean_interval, turn_drafts_of
from turntree.agents.evaluation.run import plan, play
from turntree.agents.evaluation.suite import EvalTask
from turntree.agents.files import json_value
from turntree.agents.loop.renderer import Renderer
from turntree.agents.yaml_files import read_yaml
from turntree.configs import __file__ as configs
from turntree.envs.limits import Limits

_REPEATS = 1000


def coverage(tasks: int, samples: int) -> dict[str, float]:
    """Return the share of simulated intervals that contain the difference, and their relative width."""
    held, widths = [], {"same noise": [], "other noise": []}
    for seed in range(_REPEATS):
        random = np.random.default_rng(seed)
        second = 0.5 + 0.05 * random.standard_normal(tasks)
        noise, apart = random.random((2, tasks, samples))
        before = (noise < 0.5).mean(1)
        for name, drawn in (("same noise", noise), ("other noise", apart)):
            after = (drawn < second[:, None]).mean(1)
            paired, loose = mean_interval(list(after - before)), independent_interval(list(before), list(after))
            widths[name].append((paired.high - paired.low) / (loose.high - loose.low))
            if drawn is noise:
                held.append(paired.low <= 0 <= paired.high)
    shown = {f"width of the independent interval, {name}": float(np.mean(found)) for name, found in widths.items()}
    return {"coverage": float(np.mean(held)), **shown}


def neighbours(folder: Path, steps: int) -> tuple[str, str]:
    """Return the demo's policy before and after the last of ``steps`` training steps."""
    policy, run = warm_started_policy(), folder / "run"
    trained("demo", run, steps, {"actor_rollout_ref.model.path": f"'{policy}'"})
    made = []
    for step in (steps - 1, steps):
        made.append(folder / f"step{step}")
        shutil.copytree(policy, made[-1], dirs_exist_ok=True)
        shutil.copy(run / "weights" / f"step_{step:06d}.safetensors", made[-1] / "model.safetensors")
    return str(made[0]), str(made[1])


class Played(NamedTuple):
    episodes: list[Episode]
    passes: int  #: forward passes of the engine, each over all requests of a step

    @property
    def verify_steps(self) -> int:
        return sum(turn.completion.draft.verify_steps for one in self.episodes for turn in one.turns)

    @property
    def said(self) -> list[Any]:
        return [[turn.completion.token_ids for turn in one.turns] for one in self.episodes]


async def measured(args: argparse.Namespace, before: str, after: str) -> dict[str, Any]:
    sizes: dict[str, Any] = {"count": args.count, "samples": args.samples, "max_tokens": args.max_tokens}
    planned = plan(EvalTask(env=args.env, env_args=args.env_args, temperature=args.temperature, **sizes))
    checkpoint = Checkpoint.open(before)
    planned, renderer = planned.fitted(checkpoint.max_positions), Renderer(checkpoint.tokenizer)

    async def evaluated(
        model: str, *, seed: int = 0, speculate: bool = True, turn_draft: Played | None = None
    ) -> Played:
        choice = EngineChoice(
            name=EngineName.LOCAL,
            model=model,
            max_batch=args.concurrency,
            max_context=planned.context,
            speculate=speculate,
        )
        turn_drafts = None if turn_draft is None else turn_drafts_of(turn_draft.episodes, args.samples, 0)
        playing = Playing(model=model, seed=seed, concurrency=args.concurrency)
        async with open_engine(choice) as engine:
            found = await play(planned, engine, renderer, playing, turn_drafts=turn_drafts)
            return Played(found.episodes, engine.stats().forward_passes)  # type: ignore[attr-defined]

    first = await evaluated(before)
    second = await evaluated(after, turn_draft=first)
    plain = [await evaluated(model, speculate=False) for model in (before, after)]
    alone = await evaluated(after)
    control = await evaluated(after, seed=1, turn_draft=first)
    shown: dict[str, Any] = {}
    for name, one in (("same noise", second), ("control: other noise", control)):
        figures = compare(first.episodes, one.episodes, args.samples).figures()
        changed = len(figures.pop("changed"))
        paired, loose = figures["difference"], figures["difference of independent evaluations"]
        width = (paired["high"] - paired["low"]) / (loose["high"] - loose["low"])
        shown[name] = {**figures, "changed": changed, "width of the independent interval": width}
    shown["passes of both"] = {
        "paired": [sum(one.verify_steps for one in (first, second)), first.passes + second.passes],
        "plain decoding": [sum(one.verify_steps for one in plain), sum(one.passes for one in plain)],
        "drafted, apart": [sum(one.verify_steps for one in (first, alone)), first.passes + alone.passes],
        "tokens as by plain decoding": [one.said for one in (first, second)] == [one.said for one in plain],
    }
    for name in ("plain decoding", "drafted, apart"):
        steps, passes = zip(*(shown["passes of both"][which] for which in ("paired", name)), strict=True)
        shown["passes of both"][f"share of {name}"] = [steps[0] / steps[1], passes[0] / passes[1]]
    return shown


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("checkpoints", nargs="*", metavar="BEFORE AFTER", help="without them the demo is trained")
    parser.add_argument("--steps", type=int, default=8, help="of that training: the last one lies between both")
    parser.add_argument("--env", default="turntree/Arithmetic-v0")
    parser.add_argument("--env-args", type=json.loads, help="a JSON object; the demo's without it")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=16)
    args = parser.parse_args()
    if len(args.checkpoints) not in (0, 2):
        parser.error(f"two checkpoints are compared, got {len(args.checkpoints)}")
    if args.env_args is None:
        args.env_args = read_yaml(Path(configs).parent / "demo.yaml")["turntree"]["env_kwargs"]
        args.env_args["limits"] = Limits(**args.env_args["limits"])
    with tempfile.TemporaryDirectory() as folder:
        pair = args.checkpoints or neighbours(Path(folder), args.steps)
        found = {"simulated": coverage(args.count, args.samples), **asyncio.run(measured(args, *pair))}
    for name, rows in found.items():
        print(name)
        for key, value in rows.items():
            print(f"  {key}: {value:.3f}" if isinstance(value, float) else f"  {key}: {value}")
    keep(args.json, json_value({**provenance(["torch", "numba", "numpy"]), "figures": found}))


if __name__ == "__main__":
    main()
