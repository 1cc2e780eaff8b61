"""Each use of earlier turns in a real training by verl, in the engine that is named.

Every way trains the demo's policy by GRPO from the same weights, on the same tasks, which come back in each epoch.
A table of the epochs: tokens in a forward pass of the engine (of all requests together) and in a pass of one request;
turns that begin with a stored or a precomputed one, and passes of such a turn; how many of the stored tokens that were
tried stayed, and their share of all; shares of the exactness levels; mean reward; and the time until the last episode
of the step was there.

Finished ways are kept in ``--json`` and not run again. On the CPU, where SGLang has no kernels, stand-ins in plain
PyTorch take their place (``tests/support/cpu_kernels``): its times say nothing.

    python benchmarks/reuse.py --engine local|vllm|sglang [--ways tree replay] [--epochs 2] [--json OUT]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from common.provenance import kept_from, provenance
from common.script import arguments, keep, show, titled
from common.verl_training import trained

from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.episodes.record import read_records
from turntree.agents.verl.launch import StepReport
from turntree.agents.verl.records.recording import RunFolder

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"
WAYS = {
    "none": "[none]",
    "tree": "[tree]",
    "replay": "[tree,replay]",
    "exact": "[tree,exact]",
    "lenient": "[tree,lenient]",
    "runahead": "[tree,runahead]",
}
"""Name -> ``speculation`` of the configuration."""
REUSED = "BCD"
"""Levels of tokens from a stored or a precomputed turn."""


def of_step(report: StepReport, folder: RunFolder) -> dict[str, Any]:
    """The figures of one step, which is an epoch."""
    turns = [turn.completion for r in read_records(folder.episodes(report.step)) for turn in r.episode.turns]
    levels = Counter(letter for turn in turns for letter in turn.levels or "A" * len(turn.token_ids))
    tokens, reused = levels.total(), sum(levels[letter] for letter in REUSED)
    again = [turn.draft.verify_steps for turn in turns if any(letter in REUSED for letter in turn.levels)]
    passes = report.engine.get("forward_passes", 0)
    return {
        "step": report.step,
        "tokens": tokens,
        "tokens_per_pass": tokens / passes if passes else None,
        "tokens_per_request_pass": tokens / sum(turn.draft.verify_steps or len(turn.token_ids) for turn in turns),
        "turns": len(turns),
        "reused_turns": len(again),
        "kept_of_offered": _share(report.metrics, "reuse_reused", "reuse_offered"),
        "passes_per_reused_turn": fmean(again) if again else None,
        "reused_share": reused / tokens,
        "levels": {letter: levels[letter] / tokens for letter in "ABCD"},
        "reward": report.reward,
        "rollout_seconds": report.metrics.get("timing_s/gen"),
    }


def _share(metrics: Mapping[str, float], part: str, whole: str) -> float | None:
    total = metrics.get(f"turntree/{whole}", 0)
    return metrics[f"turntree/{part}"] / total if total else None


def epochs_of(args: argparse.Namespace, way: str, model: str) -> list[dict[str, Any]]:
    """Train one way, and the figures of each epoch."""
    from training_engines import engine_options

    settings = {
        "speculation": WAYS[way],
        "actor_rollout_ref.model.path": model,
        "turntree.save_policy_every": 0,
        "turntree.train_tasks": args.tasks,
        "data.train_batch_size": args.tasks,
        "actor_rollout_ref.rollout.n": args.samples,
        "actor_rollout_ref.rollout.max_num_seqs": args.max_batch,
        "actor_rollout_ref.actor.optim.lr_warmup_steps": 0,  # the first update is as large as the others
    }
    with tempfile.TemporaryDirectory() as root:
        folder = RunFolder(Path(root) / "run")
        further = [*engine_options(args.engine), *args.set]
        return [of_step(one, folder) for one in trained("demo", folder.root, args.epochs, settings, *further)]


def cells(way: str, row: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    kept = "-" if row["kept_of_offered"] is None else f"{row['kept_of_offered']:.0%}"
    figures = (row["tokens_per_pass"], row["tokens_per_request_pass"], row["passes_per_reused_turn"])
    in_pass, in_request_pass, of_turn = ("-" if figure is None else f"{figure:.2f}" for figure in figures)
    shares = ", ".join(f"{letter} {share:.0%}" for letter, share in row["levels"].items() if share)
    return (
        way, str(row["step"]), in_pass, in_request_pass, f"{row['reused_turns']} of {row['turns']}", of_turn, kept,
        f"{row['reused_share']:.0%}", shares, f"{row['reward']:.3f}", f"{row['rollout_seconds']:.1f}",
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--engine", choices=("local", "vllm", "sglang"), required=True)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--epochs", type=int, default=2, help="of one step each")
    parser.add_argument("--tasks", type=int, default=16, help="of an epoch")
    parser.add_argument("--samples", type=int, default=4, help="episodes of a task")
    parser.add_argument("--max-batch", type=int, default=96, help="requests at once, precomputed ones included")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings")
    args = parser.parse_args(argv)
    sys.path.insert(0, str(SUPPORT))
    if args.engine == "sglang":
        from cpu_sglang import prepare

        prepare()
        del os.environ["TURNTREE_SGLANG"]  # the configuration brings the settings
    names = ("engine", "epochs", "tasks", "samples", "max_batch", "set")
    record: dict[str, Any] = {
        **provenance(("torch", "verl", *(() if args.engine == "local" else (args.engine,)))),
        "settings": {name: getattr(args, name) for name in names},
        "ways": {},
    }
    record |= kept_from(args.json, record)
    model = str(warm_started_policy(seed=0))
    for way in args.ways:
        if way not in record["ways"]:
            record["ways"][way] = epochs_of(args, way, model)
            print(f"{way}: done", file=sys.stderr, flush=True)
            keep(args.json, record)
    columns = ("way", "epoch", "tokens/pass", "tokens/request pass", "reused turns", "passes of one", "kept", "of all")
    shown = (cells(way, row) for way, rows in record["ways"].items() for row in rows)
    show(titled(record), (*columns, "levels", "reward", "rollout s"), shown, words=("way", "levels"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
