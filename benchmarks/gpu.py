"""Measure and check every GPU feature of turntree, stage after stage.

Without vLLM and SGLang, the stages that need PyTorch alone run: the seeded race, the local engine with and without
trees, launches per step, exactness. With vLLM: recorded dialogues with unmodified vLLM, with turntree's seeds and with
its drafts; exactness; three training steps. With SGLang: recorded dialogues without drafts, with its n-gram drafts and
with turntree's; released memory; greedy turns with trees. The two engines have separate environments: run the script in
each with the same ``--out``. Models are made here; no network is needed. Recorded traces are read from $TURNTREE_DATA;
without it, dialogues are generated. The last table compares the ways of each engine: look first at the times of the
second epoch, then at full graphs and at milliseconds of steps with few requests.

    python benchmarks/gpu.py [--out runs/gpu] [--model DIR] [--only STAGE ...]    # a GPU
    python benchmarks/gpu.py --small --device cpu --out runs/small                # tests the script on any machine
    python benchmarks/gpu.py --list

A stage is a process with a time limit. Results are written after each stage to ``results.json`` in ``--out``, next to
``speed.svg``, the stages' logs and the models. A second run continues with stages that are not done; ``--again``
repeats stages. The exit status is 1 if a stage failed; skipped stages are listed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from first_hour.report import compared, plot, show, table
from first_hour.running import Result, Results, run_all
from first_hour.setting import Setting
from first_hour.stages import STAGES, Stage
from rich.console import Console


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    names = [stage.name for stage in STAGES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of results, logs and models")
    parser.add_argument("--model", type=Path, help="folder of a model, in place of one with random weights")
    parser.add_argument("--only", nargs="+", metavar="STAGE", choices=names, default=names)
    parser.add_argument("--again", action="store_true", help="run stages that are done once more")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--small", action="store_true", help="the smallest sizes, float32")
    parser.add_argument("--list", action="store_true", help="name the stages and their limits")
    parser.add_argument("--stage", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def command(args: argparse.Namespace, stage: Stage, file: Path) -> list[str]:
    given = ["--out", str(args.out), "--device", args.device, "--dtype", args.dtype]
    given += ["--model", str(args.model)] if args.model else []
    given += ["--small"] if args.small else []
    return [sys.executable, __file__, "--stage", stage.name, "--rows", str(file), *given]


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    console = Console(width=160 if not sys.stdout.isatty() else None)
    if args.list:
        for stage in STAGES:
            console.print(f"{stage.name:<28}{stage.minutes:>4g} min  {stage.skipped}", highlight=False)
        return 0
    args.out = args.out.absolute()
    setting = Setting(
        folder=args.out,
        device=args.device,
        dtype="float32" if args.small else args.dtype,
        small=args.small,
        model=args.model and args.model.absolute(),
    )
    if args.stage:
        rows = next(stage for stage in STAGES if stage.name == args.stage).run(setting)
        args.rows.write_text(json.dumps(rows))
        return 0
    if args.device != "cpu":
        import torch

        if not torch.cuda.is_available():
            sys.exit("PyTorch sees no GPU here; give --small --device cpu to see on this machine that the script runs")
    elif args.small:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # a second thread costs tiny models more than it saves
    args.out.mkdir(parents=True, exist_ok=True)
    settings = {"model": str(args.model or "made here"), "small": args.small, "dtype": setting.dtype}
    results = Results(args.out / "results.json", settings=settings, device=args.device)
    chosen = [stage for stage in STAGES if stage.name in args.only]
    if args.again:
        results.forget(stage.name for stage in chosen)

    def say(stage: Stage, result: Result) -> None:
        show(console, stage.name, result)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the running stage ends with this
    whole = run_all(chosen, results, lambda stage, file: command(args, stage, file), say=say)
    stages = results.report["stages"]
    counts = {
        outcome: [name for name, result in stages.items() if result["outcome"] == outcome]
        for outcome in ("done", "failed", "skipped")
    }
    console.print(f"{results.report['machine']}; {results.report['versions']}", highlight=False, soft_wrap=True)
    for outcome, named in counts.items():
        console.print(f"{outcome}: {len(named)} {' '.join(named)}", highlight=False, soft_wrap=True)
    if rows := compared(stages):
        console.print(table("recorded dialogues; ratio: times as fast as the first way of the engine", rows))
    drawn = plot(stages, args.out / "speed.svg")
    console.print(f"{results.file}{' and speed.svg' if drawn else ''}", highlight=False, soft_wrap=True)
    return 0 if whole else 1


if __name__ == "__main__":
    raise SystemExit(main())
