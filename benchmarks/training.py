"""Where the time of a training step goes, with and without speculation, epoch after epoch.

Each way is a real training by verl, one after another, of the same tasks from the same weights. Figures are means over
the steps of an epoch; the first step also starts processes and compiles, so the first epoch is the slowest.

    python benchmarks/training.py                                # the demo's tiny policy on the CPU
    python benchmarks/training.py --model DIR --set size=small   # a model of your own
    python benchmarks/training.py --model Qwen/Qwen2.5-1.5B-Instruct --engine local --device cuda \
        --set base=gpu size=1.5b env=gsm8k trainer.n_gpus_per_node=1

Finished ways are kept in ``--out`` and not run again, so an interrupted run can be continued. ``rollout`` is the time
until the last episode is there, which verl looks for every 0.1 s; ``engine`` is the time of the engine's own steps in
it, and ``model`` that of its forward passes. Not covered: other engines than turntree's, whose counters verl does not
hand on; use their ``timing`` columns alone.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from common.provenance import kept_from, provenance
from common.script import arguments, keep
from common.verl_training import trained

from turntree.agents.verl.launch import StepReport

WAYS = {
    "none": ["none"],
    "tree": ["tree"],
    "replay": ["none", "replay"],
    "run-ahead": ["none", "runahead"],
    "all": ["tree", "replay", "runahead"],
}
"""Name -> ``speculation`` of the configuration."""
PHASES = {
    "rollout": ("timing_s/gen",),
    "old_log_prob": ("timing_s/old_log_prob",),
    "advantage": ("timing_s/adv", "timing_s/reward"),
    "update": ("timing_s/update_actor", "timing_s/update_critic"),
    "weights": ("timing_s/update_weights",),
}
"""Column -> verl's timers, seconds."""
COUNTERS = {"engine": "seconds", "model": "model_seconds", "drafting": "draft_seconds"}
"""Column -> the engine's counters, seconds."""
COLUMNS = ("step", *PHASES, *COUNTERS, "rollout_share", "tokens_per_pass", "tokens_per_step", "reward")


def of_step(report: StepReport) -> dict[str, float]:
    """The figures of one training step."""
    metrics, engine = report.metrics, report.engine
    row = {"step": report.seconds, "reward": report.reward}
    row |= {name: sum(metrics.get(timer, 0.0) for timer in timers) for name, timers in PHASES.items()}
    row |= {name: engine.get(counter, float("nan")) for name, counter in COUNTERS.items()}
    row["rollout_share"] = row["rollout"] / row["step"]
    row["tokens_per_step"] = report.tokens_per_step
    passes, tokens = engine.get("forward_passes", 0), engine.get("tokens", 0)
    row["tokens_per_pass"] = tokens / passes if passes else float("nan")
    return row


def by_epoch(reports: Sequence[StepReport], steps: int) -> list[dict[str, float]]:
    """Means over each epoch of ``steps`` steps."""
    rows = [of_step(report) for report in reports]
    epochs = [rows[start : start + steps] for start in range(0, len(rows), steps)]
    return [{name: fmean(row[name] for row in epoch) for name in COLUMNS} for epoch in epochs]


def run(args: argparse.Namespace, way: str, model: str, folder: Path) -> list[StepReport]:
    """Train one way."""
    settings = {
        "speculation": f"[{','.join(WAYS[way])}]",
        "actor_rollout_ref.model.path": f"'{model}'",
        "turntree.train_tasks": args.tasks,
        "turntree.save_policy_every": 0,
        "turntree.record_episodes": bool(args.keep),
        "data.train_batch_size": args.batch,
        "actor_rollout_ref.rollout.n": args.samples,
        "actor_rollout_ref.rollout.engine_kwargs.turntree.device": args.device,
    }
    return trained(args.config, folder, args.epochs * args.tasks // args.batch, settings, *args.set)


def table(ways: dict[str, list[dict[str, float]]]) -> Iterable[str]:
    """The figures as text."""
    yield f"{'way':<10}{'epoch':>6}" + "".join(f"{name:>16}" for name in COLUMNS)
    for way, epochs in ways.items():
        for number, row in enumerate(epochs, start=1):
            yield f"{way:<10}{number:>6}" + "".join(f"{row[name]:>16.3f}" for name in COLUMNS)


def _model(given: str | None, seed: int) -> str:
    if given is not None:
        path = Path(given).expanduser()
        return str(path.absolute()) if path.exists() else given
    from turntree.agents.demo.warm_start import warm_started_policy

    return str(warm_started_policy(seed=seed))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = arguments(__doc__, "--out")
    parser.add_argument("--config", default="demo", help="a configuration of turntree.configs, or a YAML file")
    parser.add_argument("--model", help="directory or Hugging Face id; without it the demo's warm-started policy")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--engine", default="local", choices=["local"], help="the rollout engine")
    parser.add_argument("--device", default="cpu", help="torch device of the engine")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--tasks", type=int, default=128, help="tasks of an epoch")
    parser.add_argument("--batch", type=int, default=32, help="tasks of a step")
    parser.add_argument("--samples", type=int, default=8, help="episodes of a task")
    parser.add_argument("--seed", type=int, default=0, help="of the warm start")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings")
    parser.add_argument("--keep", type=Path, help="keep what the runs record, episodes included, in this folder")
    args = parser.parse_args(argv)
    if args.tasks % args.batch:
        parser.error(f"--tasks must be a multiple of --batch, got {args.tasks} and {args.batch}")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    told = {name: getattr(args, name) for name in ("config", "engine", "device", "epochs", "tasks", "batch", "samples")}
    record: dict[str, Any] = {
        **provenance(("torch", "verl", "ray", "transformers"), device=args.device),
        "settings": {**told, "model": args.model or "the demo's", "set": args.set},
        "ways": {},
    }
    record |= kept_from(args.out, record)
    model = _model(args.model, args.seed)
    for way in args.ways:
        if way in record["ways"]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            reports = run(args, way, model, (args.keep or Path(folder)).absolute() / way)
        record["ways"][way] = by_epoch(reports, args.tasks // args.batch)
        print(*table({way: record["ways"][way]}), sep="\n", flush=True)
        keep(args.out, record)
    print(record["machine"], record["command"], *table(record["ways"]), sep="\n")


if __name__ == "__main__":
    main()
