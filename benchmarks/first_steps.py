"""Measure each CPU configuration: seconds to the end of the first and the second step, and memory.

    python benchmarks/first_steps.py --model DIR --data DIR [--only NAME ...] [--json FILE]

``DIR`` of ``--data`` contains ``data``, like ``$TURNTREE_DATA``. Each configuration runs for two steps, otherwise
unchanged, with a chat model (the demo with its own policy). ``doubling`` is the README's custom environment. Memory is
sampled twice a second: the largest process, and all processes together with shared pages counted once (the kernel's
``Pss``). Adam's moments exist from the first update on.

Rows of other configurations that the JSON file already has are kept.

Not covered: GPUs, trainings with vLLM or SGLang, and ``dapo_arithmetic_cpu``, which replaces groups with equal scores:
nearly all groups of SmolLM2 have equal scores.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from common.provenance import kept_from, provenance
from common.script import arguments, keep, show, titled

from turntree.agents.demo.policy import build_policy, save_policy

ROOT = Path(__file__).resolve().parents[1]
DOUBLING = "doubling"
CONFIGS = ("demo", DOUBLING, "grpo_arithmetic_cpu", "ppo_arithmetic_cpu", "grpo_gsm8k_cpu")
STEPS = 2
_MARK = "TURNTREE_BENCHMARK_RUN"
_POLL = 0.5


class Memory(NamedTuple):
    """Memory of a run's processes, bytes."""

    largest: int
    together: int


def memory_of(mark: str) -> Memory:
    # The processes with ``mark`` in their environment.
    found = [(0, 0)]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                sizes = dict(re.findall(r"^(Rss|Pss):\s+(\d+) kB", (folder / "smaps_rollup").read_text(), re.M))
                found.append((int(sizes["Rss"]) << 10, int(sizes["Pss"]) << 10))
        except (OSError, KeyError):  # it has ended, or is the kernel's
            continue
    return Memory(max(rss for rss, _ in found), sum(pss for _, pss in found))


def readme_example(folder: Path) -> Path:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = folder / f"{DOUBLING}.py"
    path.write_text(next(block for block in blocks if "class Doubling" in block))
    return path


def command_of(name: str, model: Path, folder: Path) -> list[str]:
    if name == DOUBLING:
        return [sys.executable, str(readme_example(folder)), str(model)]
    return [sys.executable, "-m", "turntree.agents.cli", "train", name, f"actor_rollout_ref.model.path={model}"]


def measure(name: str, model: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as text:
        folder, mark = Path(text), uuid.uuid4().hex
        run, log = folder / "run", folder / "log.txt"
        options = [f"turntree.run_dir={run}", f"trainer.total_training_steps={STEPS}"]
        environment = {**os.environ, _MARK: mark, "HF_HUB_OFFLINE": "1"}
        began, ends, peak = time.perf_counter(), list[float](), Memory(0, 0)
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command_of(name, model, folder), *options], cwd=folder, env=environment, stdout=out, stderr=out
            )
            while process.poll() is None:
                done = steps_in(run / "metrics.jsonl")
                ends += [time.perf_counter() - began] * (done - len(ends))
                peak = Memory(*map(max, peak, memory_of(mark)))
                time.sleep(_POLL)
        if process.returncode or not ends:
            sys.exit(f"{name} ended with status {process.returncode}: {log.read_text(errors='replace')[-3000:]}")
        return {
            "config": name,
            "first_step_seconds": round(ends[0], 1),
            "second_step_seconds": round(ends[1] - ends[0], 1) if len(ends) > 1 else None,
            "largest_process_gb": round(peak.largest / 1e9, 2),
            "all_processes_gb": round(peak.together / 1e9, 2),
        }


def steps_in(metrics: Path) -> int:
    if not metrics.is_file():
        return 0
    lines = metrics.read_text().splitlines(keepends=True)
    return len({step for line in lines if line.endswith("\n") and (step := json.loads(line)["step"]) > 0})


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of a chat model")
    parser.add_argument("--data", type=Path, help="the folder that holds data")
    parser.add_argument("--only", nargs="*", default=CONFIGS, choices=CONFIGS, help="configurations")
    args = parser.parse_args()
    if args.data:
        os.environ["TURNTREE_DATA"] = str(args.data.resolve())
    about = provenance(("turntree", "verl", "ray", "torch", "transformers"))
    about["settings"] = {"model": args.model.name, "steps": STEPS}
    rows = {row["config"]: row for row in kept_from(args.json, about).get("rows", [])}
    with tempfile.TemporaryDirectory() as folder:
        own = save_policy(build_policy(), Path(folder) / "policy")
        for name in args.only:
            rows[name] = measure(name, own if name == "demo" else args.model.resolve())
            print(rows[name], file=sys.stderr)
            keep(args.json, {**about, "rows": list(rows.values())})
    columns = ("configuration", "first step, s", "second, s", "largest process, GB", "all processes, GB")
    show(titled(about), columns, (row.values() for row in rows.values()), words=("configuration",))


if __name__ == "__main__":
    main()
