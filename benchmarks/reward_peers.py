"""Run another grader over rows in its own process, for ``rewards.py``.

    python reward_peers.py GRADER < rows.jsonl > verdicts.jsonl

A row has ``prediction`` and ``gold``, a verdict ``correct`` and ``seconds``. Graders are called as in their own
projects, with their default time-outs; an exception counts as wrong.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable

Grader = Callable[[str, str], bool]


def math_verify() -> Grader:
    from math_verify import parse, verify

    return lambda prediction, gold: bool(verify(parse(f"${gold}$"), parse(prediction)))


def verl_grader(module: str) -> Grader:
    import importlib

    compute = importlib.import_module(f"verl.utils.reward_score.{module}").compute_score

    def grade(prediction: str, gold: str) -> bool:
        verdict = compute(prediction, gold)
        if isinstance(verdict, dict):
            verdict = verdict.get("acc", verdict.get("score", 0))
        if isinstance(verdict, tuple):
            verdict = verdict[0]
        return float(verdict) > 0.5

    return grade


def main() -> None:
    logging.disable(logging.CRITICAL)
    name = sys.argv[1]
    grade = math_verify() if name == "math_verify" else verl_grader(name)
    verdicts = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # graders print
    for line in sys.stdin:
        row = json.loads(line)
        began = time.perf_counter()
        try:
            correct = grade(row["prediction"], row["gold"])
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            correct = False
        print(json.dumps({"correct": correct, "seconds": time.perf_counter() - began}), file=verdicts, flush=True)


if __name__ == "__main__":
    main()
