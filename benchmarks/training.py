"""Where the time of a training step goes and what its turns take, for each use of speculation, epoch after epoch.

Each way is a real training by verl, one after another, of the same tasks from the same weights; a way is its
options of ``speculation`` and ``reuse``, joined by ``+``. Figures are means over the steps of an epoch; the first step
also starts processes and compiles, so the first epoch is the slowest. Two tables:

- Seconds. ``rollout`` is the time until the last episode is there, which verl looks for every 0.1 s; ``engine`` is the
  time of the engine's own steps in it, and ``model`` that of its forward passes.
- Tokens in a forward pass of the engine (of all requests together), in a forward pass of one request as the engine
  counts them, and as the turns do; turns that begin with a stored or a precomputed one, and passes of such a turn;
  how many of the stored tokens that were tried stayed, and the share of all tokens that such turns gave; shares of the
  exactness levels; the mean reward.

    python benchmarks/training.py                                # the demo's tiny policy on the CPU
    python benchmarks/training.py --model DIR --set size=small   # a model of your own
    python benchmarks/training.py --model Qwen/Qwen2.5-1.5B-Instruct --engine local --device cuda \
        --set device=gpu size=1.5b env=gsm8k trainer.n_gpus_per_node=1

Finished ways are kept in ``--json`` and not run again, so an interrupted run can be continued. Not covered: the time of
the steps of other engines than turntree's, whose counters verl does not hand on; use their ``rollout``. On the CPU,
where SGLang has no kernels, stand-ins in plain PyTorch take their place (``tests/support/cpu_kernels``): its times say
nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from common.provenance import kept_from, provenance
from common.script import arguments, keep, show, titled
from common.verl_training import trained

from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.engines.protocol import Completion
from turntree.agents.episodes.record import read_records
from turntree.agents.files import json_value
from turntree.agents.turn_drafts.config import ReuseMode
from turntree.agents.verl.launch import StepReport
from turntree.agents.verl.records.recording import RunFolder

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"
WAYS = ("none", "tree", "none+same_seed", "none+run_ahead", "tree+same_seed+run_ahead")
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
SECONDS = ("step", *PHASES, *COUNTERS, "rollout_share")
REUSED = "BCD"
"""Levels of tokens from a stored or a precomputed turn."""


def of_step(report: StepReport, turns: Sequence[Completion]) -> dict[str, float]:
    """The figures of one training step; not a number what its engine does not count."""
    metrics, engine = report.metrics, report.engine
    row = {"step": report.seconds, "reward": report.reward}
    row |= {name: sum(metrics.get(timer, 0.0) for timer in timers) for name, timers in PHASES.items()}
    row |= {name: engine.get(counter, math.nan) for name, counter in COUNTERS.items()}
    row["rollout_share"] = row["rollout"] / row["step"]
    levels = Counter(letter for one in turns for letter in one.levels or "A" * len(one.token_ids))
    again = [one.draft.verify_steps for one in turns if any(letter in REUSED for letter in one.levels)]
    tokens, passes = levels.total(), engine.get("forward_passes", 0)
    offered = metrics.get("turntree/reuse_offered", 0)
    return row | {
        "tokens_per_engine_pass": tokens / passes if passes else math.nan,
        "tokens_per_forward_pass": report.tokens_per_forward_pass,
        "tokens_per_request_pass": tokens / sum(one.draft.verify_steps or len(one.token_ids) for one in turns),
        "turns": len(turns),
        "reused_turns": len(again),
        "passes_per_reused_turn": fmean(again) if again else math.nan,
        "kept_of_offered": metrics["turntree/reuse_reused"] / offered if offered else math.nan,
        "reused_share": sum(levels[letter] for letter in REUSED) / tokens,
        **{f"level_{letter}": levels[letter] / tokens for letter in "ABCD"},
    }


def by_epoch(rows: Sequence[dict[str, float]], steps: int) -> list[dict[str, float]]:
    """Means over each epoch of ``steps`` steps."""
    epochs = [rows[start : start + steps] for start in range(0, len(rows), steps)]
    return [{name: fmean(row[name] for row in epoch) for name in epoch[0]} for epoch in epochs]


def options_of(way: str) -> dict[str, str]:
    """The options ``speculation`` and ``reuse`` of a way.

    >>> options_of("tree+same_seed+run_ahead")
    {'speculation': '[tree,run_ahead]', 'reuse': 'same_seed'}
    """
    names = way.split("+")
    reuses = [name for name in names if name in {*ReuseMode} - {ReuseMode.NONE}]
    options = {"speculation": f"[{','.join(name for name in names if name not in reuses)}]"}
    return options | ({"reuse": reuses[0]} if reuses else {})


def run(args: argparse.Namespace, way: str, model: str, folder: RunFolder) -> list[dict[str, float]]:
    """Train one way, and the figures of each step."""
    from training_engines import engine_options

    settings = {
        **options_of(way),
        "actor_rollout_ref.model.path": f"'{model}'",
        "turntree.train_tasks": args.tasks,
        "turntree.save_policy_every": 0,
        "data.train_batch_size": args.batch,
        "actor_rollout_ref.rollout.n": args.samples,
    }
    if args.engine == "local":
        settings["actor_rollout_ref.rollout.engine_kwargs.turntree.device"] = args.device
    further, steps = [*engine_options(args.engine), *args.set], args.epochs * args.tasks // args.batch
    reports = trained(args.config, folder.root, steps, settings, *further)
    return [of_step(one, turns_of(folder, one.step)) for one in reports]


def turns_of(folder: RunFolder, step: int) -> list[Completion]:
    """What a training step sampled."""
    return [turn.completion for record in read_records(folder.episodes(step)) for turn in record.episode.turns]


def tables(title: str, ways: dict[str, list[dict[str, Any]]]) -> None:
    """Print the figures."""
    rows = [(way, epoch, row) for way, epochs in ways.items() for epoch, row in enumerate(epochs, start=1)]
    columns = ("way", "epoch")
    seconds = ((way, epoch, *(shown(row[name], ".3f") for name in SECONDS)) for way, epoch, row in rows)
    show(title, (*columns, *SECONDS), seconds, words=("way",))
    columns += (
        "tokens per engine pass",
        "per forward pass",
        "as the turns count",
        "reused turns",
        "passes of one",
        "kept",
        "of all",
    )
    counts = ((way, epoch, *counted(row)) for way, epoch, row in rows)
    show("tokens", (*columns, "levels", "reward"), counts, words=("way", "levels"))


def counted(row: dict[str, Any]) -> tuple[str, ...]:
    """Cells of the second table."""
    levels = ", ".join(f"{letter} {share:.0%}" for letter in "ABCD" if (share := row[f"level_{letter}"]))
    return (
        *(shown(row[f"tokens_per_{what}"], ".2f") for what in ("engine_pass", "forward_pass", "request_pass")),
        f"{row['reused_turns']:.0f} of {row['turns']:.0f}", shown(row["passes_per_reused_turn"], ".2f"),
        shown(row["kept_of_offered"], ".0%"), shown(row["reused_share"], ".0%"), levels, shown(row["reward"], ".3f"),
    )  # fmt: skip


def shown(figure: float | None, form: str) -> str:
    """A cell, "-" where there is no figure."""
    return "-" if figure is None else format(figure, form)


def _model(given: str | None, seed: int) -> str:
    if given is None:
        return str(warm_started_policy(seed=seed))
    path = Path(given).expanduser()
    return str(path.absolute()) if path.exists() else given


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--config", default="demo", help="a configuration of turntree.configs, or a YAML file")
    parser.add_argument("--model", help="directory or Hugging Face id; without it the demo's warm-started policy")
    parser.add_argument("--ways", nargs="+", default=WAYS, help="options of speculation and reuse, joined by +")
    parser.add_argument("--engine", default="local", choices=["local", "vllm", "sglang"], help="the rollout engine")
    parser.add_argument("--device", default="cpu", help="torch device of the local engine")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--tasks", type=int, default=128, help="tasks of an epoch")
    parser.add_argument("--batch", type=int, default=32, help="tasks of a step")
    parser.add_argument("--samples", type=int, default=8, help="episodes of a task")
    parser.add_argument("--seed", type=int, default=0, help="of the warm start")
    parser.add_argument("--set", nargs="+", default=[], action="extend", metavar="KEY=VALUE", help="further settings")
    parser.add_argument("--keep", type=Path, help="keep what the runs record, episodes included, in this folder")
    args = parser.parse_args(argv)
    if args.tasks % args.batch:
        parser.error(f"--tasks must be a multiple of --batch, got {args.tasks} and {args.batch}")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sys.path.insert(0, str(SUPPORT))
    if args.engine == "sglang":
        from cpu_sglang import prepare

        prepare()
        del os.environ["TURNTREE_SGLANG"]  # the configuration brings the settings
    told = {name: getattr(args, name) for name in ("config", "engine", "device", "epochs", "tasks", "batch", "samples")}
    packages = ("torch", "verl", "ray", "transformers", *(() if args.engine == "local" else (args.engine,)))
    record: dict[str, Any] = {
        **provenance(packages, device=args.device),
        "settings": {**told, "model": args.model or "the demo's", "set": args.set},
        "ways": {},
    }
    record |= kept_from(args.json, record)
    model = _model(args.model, args.seed)
    for way in args.ways:
        if way in record["ways"]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows = run(args, way, model, RunFolder((args.keep or Path(folder)).absolute() / way))
        record["ways"][way] = json_value(by_epoch(rows, args.tasks // args.batch))
        print(f"{way}: done", file=sys.stderr, flush=True)
        keep(args.json, record)
    tables(titled(record), record["ways"])


if __name__ == "__main__":
    main()
