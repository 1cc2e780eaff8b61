"""How long a step of an environment takes in which the policy calls no tool, for every environment and split.

    python benchmarks/step_times.py --data DIR [--only GSM8K AIME] [--json results/step_times.json]

``DIR`` holds ``data``, as ``$TURNTREE_DATA`` does. Each of up to ``TASKS`` tasks is played with a policy that says
hello. Steps after which the episode goes on, and those that end it and are judged (in services by the task's own
calls, in BFCL every step, by the states of its APIs), are told apart: the median over tasks, of the fastest of
``ROUNDS`` rounds in each of ``PASSES`` over all environments, as a shared machine is slower for seconds at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from catalogue import OURS, splits
from common.provenance import provenance
from rich.console import Console
from rich.table import Table

from turntree.envs import Env, list_envs, make

TASKS = 50
MOST_STEPS = 20
"""Of one task."""
ROUNDS = 5
PASSES = 5
KINDS = ("goes_on", "judged")
Times = dict[str, float | None]


def round_of(env: Env, count: int) -> Times:
    """Median microseconds of each kind of step; ``None`` where there is none."""
    times: tuple[list[float], list[float]] = ([], [])
    for index in range(count):
        env.reset(seed=0, options={"index": index})
        for _ in range(MOST_STEPS):
            begun = time.perf_counter()
            _, _, terminated, truncated, _ = env.step("Hello there.")
            times[terminated or truncated].append((time.perf_counter() - begun) * 1e6)
            if terminated or truncated:
                break
    return {kind: statistics.median(found) if found else None for kind, found in zip(KINDS, times, strict=True)}


def fastest(rounds: Sequence[Times]) -> Times:
    """The least of each kind of step."""
    found = {kind: [one[kind] for one in rounds if one[kind] is not None] for kind in KINDS}
    return {kind: round(min(times), 1) if times else None for kind, times in found.items()}


def measured(id: str, split: str) -> Times:
    """The figures of one environment in one pass."""
    env = make(id, **({"split": split} if split else {}))
    try:
        return fastest([round_of(env, min(env.num_tasks or TASKS, TASKS)) for _ in range(ROUNDS)])
    finally:
        env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds data")
    parser.add_argument("--only", nargs="*", default=[], help="environments, by a part of their ids")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    args = parser.parse_args()
    os.environ["TURNTREE_DATA"] = str(args.data.resolve())
    about = provenance(["gymnasium", "sympy"])
    print(about["machine"], about["command"], sep="\n")
    ids = [id for id in list_envs() if id.startswith(OURS) and any(part in id for part in args.only or [OURS])]
    cases = [(id, split) for id in ids for split in splits(id, args.data / "data")]
    passes = []
    for number in range(PASSES):
        print(f"pass {number + 1} of {PASSES}", file=sys.stderr)
        passes.append([measured(*case) for case in cases])
    rows: list[dict[str, Any]] = []
    table = Table("environment", "split", "goes on, us", "judged, us")
    for (id, split), *times in zip(cases, *passes, strict=True):
        rows.append({"env": id, "split": split, **fastest(times)})
        table.add_row(id.removeprefix(OURS), split, *(str(rows[-1][kind] or "-") for kind in KINDS))
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
