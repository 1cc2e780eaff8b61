from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from turntree.agents.files import json_value, write_whole
from turntree.envs import Env
from turntree.envs.checking.attack import BOUND, LUCK, Attack, attack

_MAX_IDS = 3  #: tasks listed in the table; the report file lists all


def report_attack(
    env: Env,
    *,
    count: int = 250,
    bound: float = BOUND,
    luck: float = LUCK,
    above: float = 0.0,
    out: Path | None = None,
    as_json: bool = False,
) -> bool:
    """Attack an environment, print the report, and return whether nothing was found.

    Args:
        bound: Fraction of tasks that may reward a policy without a solution, or not reward a policy with a solution.
        luck: Fraction of tasks in which a random answer may be right.
        above: Sum of an episode's rewards above which the episode counts as rewarded.
        as_json: Whether to print JSON instead of the table.
    """
    logger = logging.getLogger("turntree.envs")
    level = logger.level
    # Do not log failures, because the report lists them.
    logger.setLevel(logging.CRITICAL)
    try:
        with Console(stderr=True).status("attacking") as status:
            report = attack(env, count=count, above=above, on_policy=lambda policy: status.update(f"policy: {policy}"))
    finally:
        logger.setLevel(level)
    findings = report.findings(bound, luck)
    written = json.dumps(json_value({"findings": findings, **asdict(report)}), indent=1, ensure_ascii=False)
    if out is not None:
        write_whole(out, written + "\n")
    if as_json:
        Console().print_json(written)
    else:
        _print(report, findings)
    return not findings


def _print(report: Attack, findings: Mapping[str, str]) -> None:
    table = Table("", "policy", "tasks", "paid", "by luck", "task ids", box=None)
    for row in report.rows:
        mark = "FOUND" if row.policy in findings else "ok"
        paid = row.tasks - len(row.refused) if row.must_pay else len(row.paid)
        shares = (f"{count / row.tasks:.2%}" for count in (paid, row.lucky))
        ids = tuple(row.refused if row.must_pay else row.paid) or tuple(row.failed)
        table.add_row(mark, Text(row.policy), str(row.tasks), *shares, Text(_some_ids(ids)))
    console = Console()
    console.print(table)
    earned = ", ".join(f"{name} {value:.3g}" for name, value in report.nothing.items())
    lines = [f"reward of silence: {earned}"]
    if report.tasks and all(row.policy != "a solution" for row in report.rows):
        lines.append("no right answer is known: no known form of `answer` is paid, and the class has no solution()")
    if report.ungraded:
        lines.append(f"left out because wrong answers are not graded: {_some_ids(report.ungraded)}")
    for line in (*lines, *(f"{policy}: {what}" for policy, what in findings.items())):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _some_ids(ids: tuple[str, ...]) -> str:
    more = f" and {len(ids) - _MAX_IDS} more" if len(ids) > _MAX_IDS else ""
    return ", ".join(ids[:_MAX_IDS]) + more
