"""Measure seconds from ``turntree train`` to the end of its first step, and to its own end.

Two kinds of a tiny training take turns: Ray's workers forked from a process that has done the imports, and each worker
a new interpreter. One uncounted run of each goes first to fill the caches.

    python benchmarks/start.py --repeat 3 --out benchmarks/results/start.json

Not covered: GPUs, where workers are not forked.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from common.provenance import provenance
from common.script import arguments, keep

from turntree.agents.demo.policy import build_policy, save_policy

WAYS = {"forked": "true", "interpreters": "false"}  #: way -> ``turntree.fork_workers``
SETTINGS = (
    "turntree.train_tasks=4",
    "turntree.val_tasks=2",
    "turntree.env_kwargs={limits: {max_turns: 3, max_turn_tokens: 12}}",
    "trainer.total_training_steps=1",
    "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
)
_POLL = 0.1


def start(way: str, model: Path) -> dict[str, float]:
    """Return the seconds of one training.

    Raises:
        SystemExit: If it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "turntree.agents.cli", "train", "demo", *SETTINGS]
        command += [f"turntree.fork_workers={WAYS[way]}", f"turntree.run_dir={run}"]
        began = time.perf_counter()
        process = subprocess.Popen(
            [*command, f"actor_rollout_ref.model.path={model}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        first = None
        while process.poll() is None:
            if first is None and (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size:
                first = time.perf_counter() - began
            time.sleep(_POLL)
        if process.returncode or first is None:
            assert process.stderr is not None, "started with a pipe"
            sys.exit(f"the training ended with status {process.returncode}: {process.stderr.read().decode()[-2000:]}")
        return {"first_step": first, "whole": time.perf_counter() - began}


def main() -> None:
    parser = arguments(__doc__, "--out")
    parser.add_argument("--repeat", type=int, default=3, help="counted runs of each way")
    args = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        model = save_policy(build_policy(), Path(folder) / "policy")
        for turn in range(args.repeat + 1):
            for way in WAYS:
                seconds = start(way, model)
                if turn:
                    runs[way].append(seconds)
    middle = {way: {key: median(run[key] for run in of_way) for key in of_way[0]} for way, of_way in runs.items()}
    print(f"{'seconds, median of ' + str(args.repeat):<24}{'first step':>12}{'whole':>8}")
    for way, row in middle.items():
        print(f"{way:<24}{row['first_step']:>12.1f}{row['whole']:>8.1f}")
    ratio = {key: middle["interpreters"][key] / middle["forked"][key] for key in middle["forked"]}
    print(f"{'ratio':<24}{ratio['first_step']:>12.2f}{ratio['whole']:>8.2f}")
    about = provenance(("verl", "ray", "torch", "transformers"))
    keep(args.out, {**about, "runs": runs, "median": middle, "ratio": ratio})


if __name__ == "__main__":
    main()
