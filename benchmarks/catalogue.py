"""Check every environment and split: the reference policy solves all tasks, useless policies solve none.

    python benchmarks/catalogue.py --data DIR [--only GSM8K AIME] [--json results/catalogue.json]

``DIR`` contains ``data``, like ``$TURNTREE_DATA``. Splits are the files that exist; BFCL's come with its package.
Environments that generate tasks play the first ``--tasks`` indices of each of ``SPLITS``. Gymnasium's ``check_env``
runs on each environment, and its warnings are counted. The policies are those of
``tests/support/catalogue_policies.py``. An episode that ends as a failure, with an ungraded answer, is neither won nor
lost and is listed for both kinds.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common.provenance import provenance
from common.script import arguments, keep, show
from gymnasium.utils.env_checker import check_env

from turntree.envs import Env, list_envs, make
from turntree.envs.bfcl.apis import package_data
from turntree.envs.bfcl.env import SPLITS as BFCL_SPLITS
from turntree.envs.catalogue import find_entry
from turntree.envs.errors import MissingExtra
from turntree.envs.math.sets import MATH_SETS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from catalogue_policies import LOSERS, WINNERS, Played, Policy, play_as

OURS = "turntree/"
SPLITS = ("train", "test")  #: of environments that generate their tasks
SHOWN = 8  #: faults per row in the printed table; the file has all
#: folder of an environment below ``data``, and which of its files are splits
_FILES = {
    **{
        id: (entry.folder or entry.name, r"(.+)\.(?:jsonl|parquet)")
        for entry in MATH_SETS
        for id in (entry.env_id, entry.tools_id)
    },
    "turntree/GSM8K-v0": ("gsm8k", r"(.+)\.(?:jsonl|parquet)"),
    "turntree/RetailService-v0": ("tau_bench", r"retail_(.+)_tasks\.jsonl"),
    "turntree/TauAirline-v0": ("tau_bench", r"airline_(.+)_tasks\.jsonl"),
}


def splits(id: str, data: Path) -> list[str]:
    entry = find_entry(id)
    assert entry, f"{id} is not in the catalogue"
    if not entry.needs_data:
        made = "split" in inspect.signature(type(make(id)).__init__).parameters
        return list(SPLITS) if made else [""]
    if "BFCL" in id:
        try:
            package_data()
        except MissingExtra as error:
            print(error, file=sys.stderr)
            return []
        return list(BFCL_SPLITS)
    folder, pattern = _FILES[id]
    found = (re.fullmatch(pattern, file.name) for file in sorted((data / folder).iterdir()))
    return [match.group(1) for match in found if match]


def plays(env: Env, policy: Policy, count: int) -> Iterator[Played]:
    for index in range(count):
        yield play_as(env, policy, index)


def named(played: Played) -> str:
    return f"{played.task.id}: {played.failure or f'{played.reward:g}, {played.stop_reason}'}"


def warnings_of(make_env: Callable[[], Env]) -> list[str]:
    """Return the complaints of Gymnasium's checker, including its logger's warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(make_env())
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]
    return [str(warning.message) for warning in caught]


def examine(id: str, split: str, tasks: int) -> dict[str, Any]:
    """Examine one environment and split.

    Args:
        id: Of the environment.
        split: Its split; empty if it has none.
        tasks: How many tasks to play of an environment that generates tasks.
    """
    begun = time.perf_counter()
    arguments = {"split": split} if split else {}
    env = make(id, **arguments)
    count = env.num_tasks or tasks
    gold = list(plays(env, WINNERS[id], count))
    useless = {name: [one for one in plays(env, policy, count) if not one.lost] for name, policy in LOSERS.items()}
    env.close()
    return {
        "env": id,
        "split": split,
        "tasks": count,
        "gold_wins": sum(one.won for one in gold),
        "gold_does_not_win": [named(one) for one in gold if not one.won],
        "useless_wins": {name: sum(one.reward > 0 for one in found) for name, found in useless.items()},
        "useless_is_ungraded": {name: sum(bool(one.failure) for one in found) for name, found in useless.items()},
        "useless_does_not_lose": {name: [named(one) for one in found] for name, found in useless.items() if found},
        "warnings": warnings_of(lambda: make(id, **arguments)),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def cells(row: dict[str, Any]) -> tuple[Any, ...]:
    faults = [f"gold: {one}" for one in row["gold_does_not_win"]]
    faults += [f"{name}: {one}" for name, found in row["useless_does_not_lose"].items() for one in found]
    faults += row["warnings"]
    if len(faults) > SHOWN:
        faults[SHOWN:] = [f"and {len(faults) - SHOWN} more"]
    return (
        row["env"].removeprefix(OURS),
        row["split"],
        f"{row['gold_wins']} of {row['tasks']}",
        f"{sum(row['useless_wins'].values())} of {len(LOSERS) * row['tasks']}",
        sum(row["useless_is_ungraded"].values()),
        len(row["warnings"]),
        "\n".join(faults),
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds data")
    parser.add_argument("--only", nargs="*", default=[], help="environments, by a part of their ids")
    parser.add_argument("--tasks", type=int, default=200, help="tasks of environments that have no end of them")
    args = parser.parse_args()
    os.environ["TURNTREE_DATA"] = str(args.data.resolve())
    about = provenance(["gymnasium", "sympy"])
    print(about["machine"], about["command"], sep="\n")
    ids = [id for id in list_envs() if id.startswith(OURS) and any(part in id for part in args.only or [OURS])]
    logging.getLogger("turntree.envs").setLevel(logging.CRITICAL)  # failures are named in the table
    rows = []
    for id in ids:
        for split in splits(id, args.data / "data"):
            rows.append(examine(id, split, args.tasks))
            print(f"{id} {split}: {rows[-1]['seconds']} s", file=sys.stderr)
    columns = ("environment", "split", "gold policy wins", "useless ones win", "ungraded", "warnings", "which")
    show("The catalogue", columns, map(cells, rows), words=("environment", "split", "which"))
    keep(args.json, {**about, "useless_policies": list(LOSERS), "tasks_without_end": args.tasks, "rows": rows})


if __name__ == "__main__":
    main()
