"""Prove each verification rule exact, and show that the proof notices a faulty rule.

One row per claim: the rule, its level (A exact given the policy, B exact if the policy was not trained on the draft,
C exact for a fixed policy, D biased), the statistic, and the same statistic of a control, the rule with a fault.
Enumerations (TV, total variation) involve no chance: below 1e-12 is exact, and a control must exceed 0.01. The
chi-square rows draw whole turns of 4 tokens out of 3 (81 cells) and notice a TV of 0.01 with the stated power.

    python benchmarks/exactness.py [--draws 300000] [--json benchmarks/results/exactness.json]
    python benchmarks/exactness.py --engine vllm [--draws 100000]     in vLLM's environment; or sglang in SGLang's

Rows of the rules and of the local engine come from ``SOURCES``, rows of other engines from ``laws.external_rows``, both
in ``tests/exactness``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from common.provenance import provenance
from common.script import arguments, keep, show, titled

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "exactness"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from laws import rule_rows
from laws.claims import Row

SOURCES: tuple[Callable[[argparse.Namespace], Iterator[Row]], ...] = (
    lambda args: rule_rows.point_mass_rows(),
    lambda args: rule_rows.ratio_rows(),
    lambda args: rule_rows.lenience_rows(),
    lambda args: rule_rows.replay_rows(),
    lambda args: rule_rows.two_turn_rows(),
    lambda args: rule_rows.run_ahead_rows(),
    lambda args: rule_rows.resume_rows(),
    lambda args: rule_rows.drawn_rows(args.draws),
    lambda args: import_module("laws.engine_rows").rows(),  # its imports want what SGLang's environment has not
    lambda args: import_module("laws.run_ahead_rows").rows(),
)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--draws", type=int, default=300_000, help="turns of the rows with chance in them")
    parser.add_argument("--engine", choices=["vllm", "sglang"], help="the rows of this engine alone")
    args = parser.parse_args()
    sources = SOURCES
    if args.engine:
        from laws.external_rows import rows

        sources = (lambda args: rows(args.engine, args.draws),)
    start = time.perf_counter()
    rows = [row for source in sources for row in source(args)]
    about = {**provenance(["numpy"]), "seconds": time.perf_counter() - start}
    columns = ("rule", "level", "statistic", "value", "control", "control's", "holds", "note")
    shown = [
        (
            row.rule, row.level, row.statistic, f"{row.value:.3g}", row.control,
            "" if row.control_value is None else f"{row.control_value:.3g}", "yes" if row.holds else "NO", row.note,
        )
        for row in rows
    ]  # fmt: skip
    show(titled(about), columns, shown, words=columns)
    keep(args.json, {**about, "rows": [asdict(row) for row in rows]})
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
