"""Run the demo over several seeds: the rise of its success, its stability, and the savings of drafts.

The seed sets the warm start and the sampling, as in ``turntree demo --seed``. *Rise* is the mean success of the last
ten steps minus that of the first ten; *fall* is that of the best ten successive steps minus that of the last ten.
Ratios divide the figure without drafts by the figure with drafts, over all compared steps and over the first and last
third, with the quartiles of single steps.

A seed has three parts: warm start, training, comparison. Existing parts in the folder are kept, and a training
continues at its last checkpoint, so repeating a killed command continues it; the JSON file is updated after each seed.
``--parts 1`` runs one part. Seconds are given only for uninterrupted parts that were not cached.

    python benchmarks/demo.py [--seeds 0 1 2 3 4] [--steps 48] [--parts N] [--runs FOLDER] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from turntree.agents.demo.compared import Comparison, passes_saved, seconds_saved
from turntree.agents.demo.comparison import compare
from turntree.agents.demo.run import settings
from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.evaluation.machine import machine_facts
from turntree.agents.files import write_whole
from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.launch import train
from turntree.agents.viewer.source import Source

WINDOW = 10
RESUMABLE = ("trainer.save_freq=12", "trainer.resume_mode=auto")
PACKAGES = ("turntree", "verl", "torch", "transformers", "ray", "numpy")


def parts(folder: Path, seed: int, steps: int) -> Iterator[str]:
    """Run the missing parts of a seed; yield each part's name when it is done."""
    done = folder / "seconds.json"
    seconds: dict[str, float | None] = json.loads(done.read_text()) if done.is_file() else {}

    def note(name: str, began: float, *, whole: bool) -> str:
        seconds[name] = round(time.perf_counter() - began, 1) if whole else None
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(done, json.dumps(seconds))
        return name

    began, learned = time.perf_counter(), []
    policy = warm_started_policy(seed=seed, on_step=lambda step, loss: learned.append(step))
    if "warm start" not in seconds:
        yield note("warm start", began, whole=bool(learned))
    overrides = settings(str(policy), steps=steps, out=folder / "run", seed=seed)
    if "training" not in seconds:
        began, fresh = time.perf_counter(), not (folder / "run").exists()
        if status := train("demo", [*overrides, *RESUMABLE]):
            raise RuntimeError(f"seed {seed}: the training ended with status {status}; see {folder / 'run'}")
        yield note("training", began, whole=fresh)
    if "comparison" not in seconds:
        began = time.perf_counter()
        compare(compose("demo", overrides), every=1).save(folder / "run" / "comparison.jsonl")
        yield note("comparison", began, whole=True)


def row(folder: Path, seed: int) -> dict[str, Any] | None:
    if not (folder / "run" / "comparison.jsonl").is_file():
        return None
    comparison = Comparison.load(folder / "run" / "comparison.jsonl")
    rewards = [step.number("critic/score/mean") for step in Source.open(folder / "run").metrics]
    success = [reward for reward in rewards if reward is not None]
    return {
        "seed": seed,
        **learning(success),
        **{f"{name} {part}": ratio for name, part, ratio in ratios(comparison)},
        "episodes": sum(step.episodes for step in comparison.steps),
        "equal": sum(step.equal for step in comparison.steps),
        "seconds": json.loads((folder / "seconds.json").read_text()),
        "success": [round(reward, 4) for reward in success],
    }


def learning(success: list[float]) -> dict[str, float]:
    """First, best and last ten steps, rise and fall.

    >>> learning([0.0] * 10 + [1.0] * 10 + [0.5] * 10)
    {'first': 0.0, 'best': 1.0, 'last': 0.5, 'rise': 0.5, 'fall': 0.5}
    """
    window = min(WINDOW, len(success))
    means = [statistics.fmean(success[at : at + window]) for at in range(len(success) - window + 1)]
    first, best, last = means[0], max(means), means[-1]
    found = {"first": first, "best": best, "last": last, "rise": last - first, "fall": best - last}
    return {name: round(value, 4) for name, value in found.items()}


def ratios(comparison: Comparison) -> Iterator[tuple[str, str, list[float]]]:
    thirds = (("first third", comparison.first_third), ("last third", comparison.last_third))
    for part, steps in (("all", comparison.steps), *thirds):
        for name, saved in (("passes", passes_saved), ("engine", seconds_saved)):
            yield name, part, [round(value, 3) for value in saved(steps)]


def table(rows: list[dict[str, Any]]) -> Table:
    success = ("first", "best", "last", "rise", "fall")
    columns = [f"{name} {part}" for part in ("all", "last third") for name in ("passes", "engine")]
    shown = Table("seed", *success, *columns, "equal", "seconds", title="the demo over seeds", title_justify="left")
    for one in rows:
        shown.add_row(
            str(one["seed"]),
            *(f"{one[name]:.3f}" for name in success),
            *("{:.2f} ({:.2f} to {:.2f})".format(*one[column]) for column in columns),
            f"{one['equal']} of {one['episodes']}",
            " + ".join("-" if seconds is None else f"{seconds:.0f}" for seconds in one["seconds"].values()),
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--parts", type=int, help="most parts to make in this call")
    parser.add_argument("--runs", type=Path, default=Path("runs/demo_seeds"), help="folder of the runs")
    parser.add_argument("--json", type=Path, help="file of the results")
    args = parser.parse_args()
    console, left = Console(), args.parts
    for seed in args.seeds:
        making = parts(args.runs / str(seed), seed, args.steps)
        while left is None or left > 0:
            part = next(making, None)
            if part is None:
                break
            console.print(f"seed {seed}: {part}")
            left = None if left is None else left - 1
        if args.json is not None:
            save(args.json, args.steps, rows(args.runs, args.seeds))
    if found := rows(args.runs, args.seeds):
        console.print(table(found))


def rows(runs: Path, seeds: list[int]) -> list[dict[str, Any]]:
    return [found for seed in seeds if (found := row(runs / str(seed), seed)) is not None]


def save(path: Path, steps: int, found: list[dict[str, Any]]) -> None:
    machine = dict(machine_facts(PACKAGES))
    told = {"command": "benchmarks/demo.py", "steps": steps, "machine": machine, "seeds": found}
    write_whole(path, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
