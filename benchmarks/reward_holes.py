r"""Measure unearned and withheld reward: answers graded together with their question.

    python benchmarks/reward_holes.py --data DIR [--json OUT]

Copying policies put a formula of the question into the box, on MATH-500 and on MATH's training tasks: the first, the
last, the longest, a random one, or whichever is right. The hiding policy is right on a quarter of its tasks and gives
answers that cannot be computed on the others; its accuracy is taken over graded samples.

Not covered: labelled answers (``rewards.py``), adversarial answers (``tests/rewards/test_question_cases.py``).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.provenance import provenance
from common.script import arguments, keep, show

from turntree.rewards import score_batch

_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_BEYOND = (r"\gcd(x,7)", r"\pi \bmod 2", r"\mathbb{E}[X]", r"\sum_{k=1}^{n} k", r"9^{9^9} \bmod 7", r"\gcd(9^{9^9},3)")


def judged(texts: Sequence[str], golds: Sequence[str], questions: Sequence[str]) -> list[bool | None]:
    return [one.correct for one in score_batch(texts, golds, "math", questions=questions)]


def hiding() -> dict[str, str]:
    texts = [r"\boxed{7}"] * 100 + [rf"\boxed{{{_BEYOND[at % len(_BEYOND)]}}}" for at in range(300)]
    verdicts = judged(texts, ["7"] * 400, [""] * 400)
    decided = [verdict for verdict in verdicts if verdict is not None]
    return {"accuracy of a policy that is right on a quarter and hides the rest": f"{sum(decided) / len(decided):.2f}"}


def copying(name: str, rows: list[dict[str, Any]]) -> dict[str, str]:
    """Count tasks paid to policies that copy a formula, and gold answers that are not paid with their question."""
    golds, questions = [str(row["answer"]) for row in rows], [str(row["question"]) for row in rows]
    formulas = [[next(filter(None, match.groups())).strip() for match in _FORMULA.finditer(text)] for text in questions]
    flat = [(at, formula) for at, own in enumerate(formulas) for formula in own]
    texts = [rf"\boxed{{{formula}}}" for _, formula in flat]
    verdicts = judged(texts, [golds[at] for at, _ in flat], [questions[at] for at, _ in flat])
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
    own = judged([rf"\boxed{{{gold}}}" for gold in golds], golds, questions)
    found[f"{name}, gold answers not paid"] = sum(verdict is not True for verdict in own)
    return {key: f"{count} of {len(rows)} ({count / len(rows):.2%})" for key, count in found.items()}


def read(path: Path) -> list[dict[str, Any]]:
    with path.open() as lines:
        return [json.loads(line) for line in lines]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    args = parser.parse_args()
    figures = hiding()
    for name, file in (("MATH-500", "math500/test.jsonl"), ("MATH train", "math/train.jsonl")):
        figures.update(copying(name, read(args.data / file)))
    show("What is paid without a solution", ("case", "paid"), figures.items(), words=("case",))
    keep(args.json, {**provenance(["sympy", "mpmath"]), "figures": figures})


if __name__ == "__main__":
    main()
