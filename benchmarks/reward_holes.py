r"""What a policy is paid without having earned it, and what it loses without fault: answers judged with their question.

    python benchmarks/reward_holes.py --data DIR [--before JSON] [--json OUT]

Cases are those of ``tests/rewards/question_cases.txt``: adversarial answers, and legitimate ones that share something
with their question. Copying policies put a formula of the question into the box, on MATH-500 and on MATH's training
tasks: the first, the last, the longest, one drawn at random, or whichever is right. The hiding policy is right on a
quarter of its tasks and gives answers that cannot be computed on the others; its accuracy is that over decided
samples. ``--before`` puts the figures beside those of an earlier run: this script under an older version.
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.provenance import provenance
from rich.console import Console
from rich.table import Table

from turntree.rewards import score_batch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from question_cases import question_cases, reported_cases

_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_BEYOND = (r"\gcd(x,7)", r"\pi \bmod 2", r"\mathbb{E}[X]", r"\sum_{k=1}^{n} k", r"9^{9^9} \bmod 7", r"\gcd(9^{9^9},3)")
_LABELLED = ("reward_cases_dev.jsonl", "real_cot_dev.jsonl")
_REPORTED = "reward_cases_3.jsonl"


def judged(texts: Sequence[str], golds: Sequence[str], contracts: Any, questions: Sequence[str]) -> list[bool | None]:
    """Verdicts; a version that takes no questions is given none."""
    asked = {"questions": list(questions)} if "questions" in inspect.signature(score_batch).parameters else {}
    return [one.correct for one in score_batch(list(texts), list(golds), contracts, **asked)]


def labelled_cases() -> dict[str, str]:
    """Cases that are judged otherwise than labelled, by group and label."""
    cases = question_cases()
    _, _, texts, golds, contracts, questions = zip(*cases, strict=True)
    found: dict[str, list[int]] = {}
    for case, verdict in zip(cases, judged(texts, golds, contracts, questions), strict=True):
        kind = {True: "legitimate, not paid", False: "adversarial, paid or undecided", None: "decided"}[case.label]
        count = found.setdefault(f"{case.group}: {kind}", [0, 0])
        count[0] += verdict is not case.label
        count[1] += 1
    return {name: f"{wrong} of {total}" for name, (wrong, total) in found.items()}


def hiding() -> dict[str, str]:
    """The accuracy of a policy that hides its wrong answers."""
    texts = [r"\boxed{7}"] * 100 + [rf"\boxed{{{_BEYOND[at % len(_BEYOND)]}}}" for at in range(300)]
    verdicts = judged(texts, ["7"] * 400, "math", [""] * 400)
    decided = [verdict for verdict in verdicts if verdict is not None]
    return {"accuracy of a policy that is right on a quarter and hides the rest": f"{sum(decided) / len(decided):.2f}"}


def copying(name: str, rows: list[dict[str, Any]]) -> dict[str, str]:
    """Tasks paid to policies that copy a formula, and golds that are not paid with their question."""
    golds, questions = [str(row["answer"]) for row in rows], [str(row["question"]) for row in rows]
    formulas = [[next(filter(None, match.groups())).strip() for match in _FORMULA.finditer(text)] for text in questions]
    flat = [(at, formula) for at, own in enumerate(formulas) for formula in own]
    texts = [rf"\boxed{{{formula}}}" for _, formula in flat]
    verdicts = judged(texts, [golds[at] for at, _ in flat], "math", [questions[at] for at, _ in flat])
    paid = {pair for pair, verdict in zip(flat, verdicts, strict=True) if verdict}
    draw = random.Random(0)
    policies = {
        "first": lambda own: own[0],
        "last": lambda own: own[-1],
        "longest": lambda own: max(own, key=len),
        "random": draw.choice,
    }
    found = {
        f"{name}, paid for the {which} formula": sum((at, pick(own)) in paid for at, own in enumerate(formulas) if own)
        for which, pick in policies.items()
    }
    found[f"{name}, paid for whichever is right"] = len({at for at, _ in paid})
    own = judged([rf"\boxed{{{gold}}}" for gold in golds], golds, "math", questions)
    found[f"{name}, gold answers not paid"] = sum(verdict is not True for verdict in own)
    return {key: f"{count} of {len(rows)} ({count / len(rows):.2%})" for key, count in found.items()}


def sets(data: Path) -> dict[str, str]:
    """Labelled answers that are judged otherwise than labelled; those from reports with their questions."""
    found = {}
    for name in _LABELLED:
        rows = read(data / name)
        verdicts = judged([row["prediction"] for row in rows], [row["gold"] for row in rows], "math", [""] * len(rows))
        wrong = sum(verdict is not row["label"] for verdict, row in zip(verdicts, rows, strict=True))
        found[f"{name}, judged otherwise than labelled"] = f"{wrong} of {len(rows)}"
    cases = reported_cases(data / _REPORTED)
    _, labels, texts, golds, contracts, questions = zip(*cases, strict=True)
    verdicts = judged(texts, golds, contracts, questions)
    for label, kind in ((False, "paid although wrong"), (True, "refused although right")):
        own = [verdict is True for verdict, right in zip(verdicts, labels, strict=True) if right is label]
        found[f"{_REPORTED}, {kind}"] = f"{sum(one is not label for one in own)} of {len(own)}"
    return found


def read(path: Path) -> list[dict[str, Any]]:
    with path.open() as lines:
        return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    figures = {**labelled_cases(), **hiding(), **sets(args.data)}
    for name, file in (("MATH-500", "math500/test.jsonl"), ("MATH train", "math/train.jsonl")):
        figures.update(copying(name, read(args.data / file)))
    before = json.loads(args.before.read_text())["figures"] if args.before else {}
    table = Table("case", "before", "now")
    for name, value in figures.items():
        table.add_row(name, before.get(name, ""), value)
    Console(width=150).print(table)
    if args.json:
        result = {**provenance(["sympy", "mpmath"]), "figures": figures, **({"before": before} if before else {})}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
