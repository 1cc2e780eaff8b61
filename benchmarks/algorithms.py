"""GRPO, PPO, DAPO and returns of turns on multi-turn arithmetic; and GRPO with each use of earlier rollouts.

DAPO's rewards are those of the groups that it keeps, in which not all samples score the same.

Every run is a real ``turntree train`` of the demo's tiny policy from the same warm start; seeds differ in the noise of
the sampling. The modes: ``none`` decodes plainly, ``tree`` drafts (level A), the others reuse stored turns.
``same_seed`` and ``rejection_sampling`` (level C if the policy was trained on the stored turn) leave the distribution
of the rollouts alone, so their curves may differ by noise only; ``spec_rl`` is biased, level D, and marked as such.

Runs that the JSON file has already are kept, so an interrupted benchmark goes on where it was. Compare seconds only
between runs that took turns on one machine: those of ``results/wall_clock.json``, in the order of ``--only``.

    python benchmarks/algorithms.py [--steps 16] [--seeds 3] [--minutes 60] [--json benchmarks/results/algorithms.json]
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from common.provenance import provenance
from common.script import arguments, keep
from common.verl_training import trained
from rich.console import Console
from rich.table import Table

from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.verl.launch import StepReport
from turntree.agents.viewer.chart import Series, line_chart, moving_average

ALGORITHMS = ("grpo", "ppo", "dapo")
PER_TURN = "grpo_turn_rewards"
MODES: dict[str, dict[str, str]] = {
    "none": {"speculation": "none"},
    "tree": {"speculation": "tree"},
    **{reuse: {"speculation": "none", "reuse": reuse} for reuse in ("same_seed", "rejection_sampling", "spec_rl")},
}
BIASED = ("spec_rl",)
OF_ALGORITHM: dict[str, dict[str, Any]] = {
    "grpo": {},
    "ppo": {"critic.optim.lr": 2e-3, "actor_rollout_ref.actor.use_kl_loss": False},
    "dapo": {},
    # Without the division by the group's spread and with a constant for the length, a step is as many times smaller.
    "grpo_turn_rewards": {"actor_rollout_ref.actor.loss_scale_factor": 8},
}
KEPT = (
    "turntree/turns",
    "turntree/tool_calls",
    "turntree/tokens_per_forward_pass",
    "turntree/acceptance",
    *(f"turntree/level_{level}" for level in "abcd"),
)
WINDOW = 4
STYLE = """<style>
.grid{stroke:#ddd}.tick{font:11px sans-serif;fill:#555}.line polyline{fill:none;stroke-width:2}.line circle{opacity:0}
.s0 polyline{stroke:#0b6e99}.s1 polyline{stroke:#d9822b}.s2 polyline{stroke:#4d7c0f}.s3 polyline{stroke:#7c3aed}
.biased polyline{stroke:#b91c1c;stroke-dasharray:5 4}
</style>"""


def runs(seeds: int) -> list[dict[str, Any]]:
    """All runs, the most wanted first."""
    wanted = [{"algorithm": name, "mode": "tree", "seed": seed} for seed in range(seeds) for name in ALGORITHMS]
    others = [mode for mode in MODES if mode != "tree"]
    wanted += [{"algorithm": "grpo", "mode": mode, "seed": seed} for seed in range(seeds) for mode in others]
    return wanted + [{"algorithm": PER_TURN, "mode": "tree", "seed": seed} for seed in range(seeds)]


def name_of(run: dict[str, Any]) -> str:
    return f"{run['algorithm']}/{run['mode']}/{run['seed']}"


def played(run: dict[str, Any], steps: int) -> dict[str, Any]:
    """Train, and what was logged."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            "algorithm": run["algorithm"],
            **MODES[run["mode"]],
            "actor_rollout_ref.model.path": warm_started_policy(),
            "actor_rollout_ref.rollout.seed": run["seed"],
            "actor_rollout_ref.actor.entropy_coeff": 0.01,
            "turntree.save_policy_every": 0,
            "turntree.record_episodes": False,
            **OF_ALGORITHM[run["algorithm"]],
        }
        reports = trained("demo", Path(folder) / "run", steps, settings)
    rows = [{"step": one.step, "seconds": one.seconds, **figures_of(one, KEPT)} for one in reports]
    return {**run, "minutes": round((time.perf_counter() - started) / 60, 2), "steps": rows}


def with_round(earlier: dict[str, Any] | None, run: dict[str, Any]) -> dict[str, Any]:
    """The run with the least seconds of each step in any of its rounds; ``rounds`` keeps the seconds of all.

    The same seed has the same rewards in every round, so that rounds differ in what else the machine had to do.

    Raises:
        RuntimeError: If the rewards differ.
    """
    rounds = rounds_of(run)
    if earlier is not None:
        if [row["reward"] for row in earlier["steps"]] != [row["reward"] for row in run["steps"]]:
            raise RuntimeError("the rewards differ from those of an earlier round with the same seed")
        rounds = rounds_of(earlier) + rounds
    least = map(min, zip(*rounds, strict=True))
    steps = [row | {"seconds": seconds} for row, seconds in zip(run["steps"], least, strict=True)]
    return {**run, "steps": steps, "rounds": rounds}


def rounds_of(run: dict[str, Any]) -> list[list[float]]:
    """Seconds of each step, by round; one round where none are kept."""
    rounds: list[list[float]] = run.get("rounds") or [[row["seconds"] for row in run["steps"]]]
    return rounds


def figures_of(report: StepReport, names: Iterable[str]) -> dict[str, float]:
    """The reward of a step, and of its metrics those that are there."""
    return {"reward": report.reward, **{name: report.metrics[name] for name in names if name in report.metrics}}


def first_and_last(done: dict[str, Any]) -> tuple[float, float]:
    """Mean reward of the first and of the last quarter of the steps."""
    rewards = [row["reward"] for row in done["steps"]]
    quarter = max(1, len(rewards) // 4)
    return statistics.fmean(rewards[:quarter]), statistics.fmean(rewards[-quarter:])


def grouped(done: dict[str, dict[str, Any]], key: str) -> dict[str, list[dict[str, Any]]]:
    """The runs of each algorithm with trees, or of each mode with GRPO."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in done.values():
        if key == "algorithm" and run["mode"] == "tree":
            found.setdefault(run["algorithm"], []).append(run)
        elif key == "mode" and run["algorithm"] == "grpo":
            found.setdefault(run["mode"], []).append(run)
    return found


def table(done: dict[str, dict[str, Any]], key: str) -> Table:
    shown = Table(key, "level", "seeds", "first quarter", "last quarter", "rose in", "turns", "tokens per forward pass")
    for name, several in grouped(done, key).items():
        firsts, lasts = zip(*map(first_and_last, several), strict=True)
        last_rows = [run["steps"][-1] for run in several]
        shown.add_row(
            name,
            "D (biased)" if name in BIASED else "C" if name in ("same_seed", "rejection_sampling") else "A",
            str(len(several)),
            f"{statistics.fmean(firsts):.3f}",
            f"{statistics.fmean(lasts):.3f} ({min(lasts):.3f} to {max(lasts):.3f})",
            f"{sum(last > first for first, last in zip(firsts, lasts, strict=True))} of {len(several)}",
            f"{statistics.fmean(row['turntree/turns'] for row in last_rows):.2f}",
            f"{statistics.fmean(row.get('turntree/tokens_per_forward_pass', 1.0) for row in last_rows):.2f}",
        )
    return shown


def chart(groups: dict[str, list[dict[str, Any]]], key: str) -> str:
    """An SVG with a line for every run; those of a group share a colour."""
    lines = []
    for place, (name, several) in enumerate(groups.items()):
        for run in several:
            rewards = moving_average([row["reward"] for row in run["steps"]], WINDOW)
            points = tuple((float(step), value) for step, value in enumerate(rewards, start=1))
            style = "biased" if name in BIASED else f"s{place % 4}"
            label = f"{name}, seed {run['seed']}" + (" (biased: level D)" if name in BIASED else "")
            lines.append(Series(name=label, style=style, points=points))
    picture = line_chart(lines, title=f"Reward of each {key}, mean of {WINDOW} steps", top=1.0)
    return picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", f">{STYLE}", 1)


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(json=Path("benchmarks/results/algorithms.json"))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--rounds", type=int, default=1, help="train each run N times and keep each step's fewest seconds"
    )
    parser.add_argument("--minutes", type=float, default=None, help="begin no run after so long")
    parser.add_argument("--only", nargs="*", default=None, help="algorithm/mode/seed of these runs, in this order")
    args = parser.parse_args()
    console, started = Console(), time.monotonic()
    further = f" --rounds {args.rounds}" if args.rounds > 1 else ""
    further += f" --only {' '.join(args.only)}" if args.only else ""
    record: dict[str, Any] = {"runs": {}}
    if args.json.exists():
        record = json.loads(args.json.read_text())
    record |= {
        **provenance(["torch", "verl"]),
        "command": f"python benchmarks/algorithms.py --steps {args.steps} --seeds {args.seeds}{further}",
    }
    wanted = {name_of(run): run for run in runs(args.seeds)}
    names = list(wanted) if args.only is None else args.only
    for count, name in product(range(1, args.rounds + 1), names):
        earlier = record["runs"].get(name)
        if earlier is not None and len(rounds_of(earlier)) >= count:
            continue
        if args.minutes is not None and time.monotonic() - started > args.minutes * 60:
            break
        try:
            record["runs"][name] = with_round(earlier, played(wanted[name], args.steps))
        except RuntimeError as error:
            console.print(f"{name}: {error}", highlight=False)
            continue
        keep(args.json, record)
        first, last = first_and_last(record["runs"][name])
        console.print(f"{name}: {first:.3f} -> {last:.3f}, {record['runs'][name]['minutes']} min", highlight=False)
    for key in ("algorithm", "mode"):
        if groups := grouped(record["runs"], key):
            console.print(table(record["runs"], key))
            args.json.with_name(f"{args.json.stem}_{key}.svg").write_text(chart(groups, key) + "\n")


if __name__ == "__main__":
    main()
