"""The demo over seeds: how far success rises, whether it stays there, and what speculation saves.

A seed is that of the warm start and of the sampling, as in ``turntree demo --seed``. *Rise* is the mean success of the
last ten steps less that of the first ten, *fall* that of the best ten successive steps less that of the last ten.
Ratios are without drafts to with, of the compared steps of each third, with the quartiles of single steps.

A seed has three parts: its warm start, its training, its comparison. Parts that the folder has already are kept, and
a training goes on at its last checkpoint, so an interrupted benchmark goes on where it was; ``--parts 1`` makes one.

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
from turntree.agents.demo.run_record import read_run
from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.evaluation.machine import machine_facts
from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.launch import train

WINDOW = 10
RESUMABLE = ("trainer.save_freq=6", "trainer.resume_mode=auto")
PACKAGES = ("turntree", "verl", "torch", "transformers", "ray", "numpy")


def parts(folder: Path, seed: int, steps: int) -> Iterator[str]:
    """Make what is missing of a seed, part by part; yields each part's name when it is there."""
    done = folder / "minutes.json"
    minutes = json.loads(done.read_text()) if done.is_file() else {}

    def note(name: str, began: float) -> str:
        minutes[name] = round((time.perf_counter() - began) / 60, 2)  # of this call: less where a training went on
        folder.mkdir(parents=True, exist_ok=True)
        done.write_text(json.dumps(minutes))
        return name

    began = time.perf_counter()
    policy = warm_started_policy(seed=seed)
    if "warm start" not in minutes:
        yield note("warm start", began)
    overrides = settings(str(policy), steps=steps, out=folder / "run", seed=seed)
    if "training" not in minutes:
        began = time.perf_counter()
        if status := train("demo", [*overrides, *RESUMABLE]):
            raise RuntimeError(f"seed {seed}: the training ended with status {status}; see {folder / 'run'}")
        yield note("training", began)
    if "comparison" not in minutes:
        began = time.perf_counter()
        compare(compose("demo", overrides)).save(folder / "run" / "comparison.json")
        yield note("comparison", began)


def row(folder: Path, seed: int) -> dict[str, Any] | None:
    """The figures of a seed; ``None`` before it was compared."""
    if not (folder / "run" / "comparison.json").is_file():
        return None
    run = read_run(folder / "run")
    comparison = run.comparison
    assert comparison is not None
    return {
        "seed": seed,
        **learning([point.success for point in run.points]),
        **{f"{name} {third}": ratio for name, third, ratio in ratios(comparison)},
        "episodes": sum(step.episodes for step in comparison.steps),
        "equal": sum(step.equal for step in comparison.steps),
        "minutes": json.loads((folder / "minutes.json").read_text()),
        "success": [round(point.success, 4) for point in run.points],
    }


def learning(success: list[float]) -> dict[str, float]:
    """First and last ten steps, rise and fall.

    >>> learning([0.0] * 10 + [1.0] * 10 + [0.5] * 10)
    {'first': 0.0, 'last': 0.5, 'rise': 0.5, 'fall': 0.5}
    """
    window = min(WINDOW, len(success))
    means = [statistics.fmean(success[at : at + window]) for at in range(len(success) - window + 1)]
    found = {"first": means[0], "last": means[-1], "rise": means[-1] - means[0], "fall": max(means) - means[-1]}
    return {name: round(value, 4) for name, value in found.items()}


def ratios(comparison: Comparison) -> Iterator[tuple[str, str, list[float]]]:
    """Name, third, and the ratio with its quartiles."""
    for third, steps in (("first third", comparison.first_third), ("last third", comparison.last_third)):
        for name, saved in (("passes", passes_saved), ("seconds", seconds_saved)):
            yield name, third, [round(value, 3) for value in saved(steps)]


def table(rows: list[dict[str, Any]]) -> Table:
    """All seeds."""
    shown = Table("seed", "first 10", "last 10", "rise", "fall", title="the demo over seeds", title_justify="left")
    columns = [f"{name} {third}" for third in ("first third", "last third") for name in ("passes", "seconds")]
    for column in columns:
        shown.add_column(column)
    shown.add_column("equal")
    shown.add_column("minutes")
    for one in rows:
        shown.add_row(
            str(one["seed"]),
            *(f"{one[name]:.3f}" for name in ("first", "last", "rise", "fall")),
            *("{:.2f} ({:.2f} to {:.2f})".format(*one[column]) for column in columns),
            f"{one['equal']} of {one['episodes']}",
            f"{sum(one['minutes'].values()):.1f}",
        )
    return shown


def main() -> None:
    """Run what is missing and show what is there."""
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
    rows = [found for seed in args.seeds if (found := row(args.runs / str(seed), seed)) is not None]
    if rows:
        console.print(table(rows))
    if args.json is not None:
        told = {
            "command": "benchmarks/demo.py",
            "steps": args.steps,
            "machine": dict(machine_facts(PACKAGES)),
            "seeds": rows,
        }
        args.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
