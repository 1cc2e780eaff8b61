"""Train synchronously and with each ``on_resume``: reward curves, versions per row, discarded tokens.

Every run is a real ``turntree train`` of the demo's tiny policy from the same warm start; seeds differ in sampling
noise. The trainer recomputes the log-probabilities of all rows with its own weights; verl logs the largest difference
of a sampled token's probability, and the KL divergence (estimator k3). In ``sync`` both come from rounding alone.

Runs that the JSON file already has are kept, so an interrupted benchmark continues.

    python benchmarks/async_training.py [--steps 12] [--seeds 3] [--minutes 9] [--json FILE] [--plot FILE]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from algorithms import chart, first_and_last
from common.provenance import kept_from, provenance
from common.script import arguments, keep
from common.verl_training import trained

from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.verl.launch import StepReport

WAYS = {
    "sync": ["mode=sync"],
    "keep": ["mode=colocate_async", "turntree.asynchronous.on_resume=keep"],
    "turn": ["mode=colocate_async", "turntree.asynchronous.on_resume=turn"],
    "episode": ["mode=colocate_async"],
}
#: name of a step's figure -> verl's metric
FIGURES = {
    "versions": "async/versions",
    "stale": "training/off_policy/trajectory_staleness_worst/max",
    "difference": "training/rollout_probs_diff_max",
    "kl": "rollout_corr/k3_kl",
    "interruptions": "async/interruptions",
    "judged": "async/reverified_turns",
    "kept_share": "async/kept_share",
    "dropped": "async/dropped_tokens",
    "passes_saved": "async/passes_saved",
    "tokens": "turntree/tokens",
}


def played(way: str, seed: int, *, steps: int, batch: int) -> dict[str, Any]:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            "actor_rollout_ref.model.path": warm_started_policy(),
            "actor_rollout_ref.rollout.seed": seed,
            "actor_rollout_ref.actor.optim.lr_warmup_steps": 1,
            "data.train_batch_size": batch,
            "algorithm.rollout_correction.bypass_mode": False,  # the trainer's own log-probabilities
            "turntree.save_policy_every": 0,
            "turntree.record_episodes": False,
        }
        reports = trained("demo", Path(folder) / "run", steps, settings, *WAYS[way])
    rows = [{"step": one.step, "reward": one.reward, **figures_of(one)} for one in reports]
    return {"way": way, "seed": seed, "minutes": round((time.perf_counter() - started) / 60, 2), "steps": rows}


def figures_of(report: StepReport) -> dict[str, float]:
    return {name: report.metrics[key] for name, key in FIGURES.items() if key in report.metrics}


def table(runs: dict[str, dict[str, Any]]) -> str:
    """Return the Markdown table: means over all seeds and steps, and the maximum where the column says so."""
    lines = [
        "| way | seeds | reward, first quarter | last quarter (seeds) | versions of a row | stale, most | "
        "judged tokens kept | discarded, of trained | probability, largest difference | KL |",
        "|" + "---|" * 10,
    ]
    for way in WAYS:
        some = [run for run in runs.values() if run["way"] == way]
        if not some:
            continue
        firsts, lasts = zip(*map(first_and_last, some), strict=True)
        steps = [row for run in some for row in run["steps"]]
        kept = [row["kept_share"] for row in steps if "kept_share" in row]
        dropped = sum(row.get("dropped", 0) for row in steps) / sum(row["tokens"] for row in steps)
        lines.append(
            f"| `{way}` | {len(some)} | {fmean(firsts):.3f} | {fmean(lasts):.3f} "
            f"({', '.join(f'{one:.3f}' for one in lasts)}) | {fmean(row.get('versions', 1.0) for row in steps):.2f} | "
            f"{max(row.get('stale', 0) for row in steps):.0f} | {f'{fmean(kept):.2f}' if kept else ''} | "
            f"{dropped:.2f} | {max(row['difference'] for row in steps):.1e} | {fmean(row['kl'] for row in steps):.1e} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16, help="tasks of a step, of 8 samples each")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--minutes", type=float, default=None, help="begin no run after so long")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    started = time.monotonic()
    about = provenance(("torch", "verl", "ray", "transformers")) | {
        "settings": {"steps": args.steps, "batch": args.batch}
    }
    record: dict[str, Any] = {**about, "runs": {}} | kept_from(args.json, about)
    for way, seed in [(way, seed) for seed in range(args.seeds) for way in args.ways]:
        if f"{way}/{seed}" in record["runs"]:
            continue
        if args.minutes is not None and time.monotonic() - started > args.minutes * 60:
            break
        record["runs"][f"{way}/{seed}"] = run = played(way, seed, steps=args.steps, batch=args.batch)
        print(f"{way}/{seed}: {first_and_last(run)}, {run['minutes']} min", flush=True)
        keep(args.json, record)
    print(table(record["runs"]))
    if args.plot:
        groups = {way: [run for run in record["runs"].values() if run["way"] == way] for way in WAYS}
        args.plot.write_text(chart(groups, "way") + "\n")


if __name__ == "__main__":
    main()
