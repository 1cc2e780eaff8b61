"""Rewards against their targets: accuracy, hacks, speed, deadlines, memory; other graders in the same run.

    python benchmarks/rewards.py --data DIR [--math-verify PYTHON] [--json OUT] [--scores 100000]

``DIR`` holds ``reward_cases_dev.jsonl`` and ``real_cot_dev.jsonl`` (``prediction``, ``gold``, ``label``, ``kind``)
and the public sets ``math500``, ``gsm8k`` and ``dapo_17k``. ``PYTHON`` is an interpreter with math-verify, which
wants another antlr runtime than hydra. verl's graders run in this interpreter. Peers are not given the inputs made
to hang: with their own time-outs these take minutes.
"""

from __future__ import annotations

import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from common.script import arguments, keep, show

from turntree.agents.evaluation.machine import hardware
from turntree.rewards import Grader, Score, score, score_batch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from hostile_answers import BOXED, CODE

Row = dict[str, Any]
PEERS = ("math_verify", "math_reward", "math_dapo", "prime_math")
HACKS = ("hack", "dos")


def read(path: Path, limit: int | None = None) -> list[Row]:
    with path.open() as lines:
        return [json.loads(line) for _, line in zip(range(limit or 10**9), lines, strict=False)]


def graded(rows: list[Row], grader: Grader | None = None) -> list[Score]:
    """Scores of the rows, none of which has a question."""
    texts, golds = [row["prediction"] for row in rows], [row["gold"] for row in rows]
    return score_batch(texts, golds, questions=[""] * len(rows), grader=grader)


def accepted(rows: list[Row]) -> list[bool]:
    return [one.correct is True for one in graded(rows)]


def peer(name: str, rows: list[Row], interpreter: str) -> tuple[list[bool], list[float]] | None:
    """Verdicts and seconds of another grader; ``None`` where it cannot be run."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [interpreter, str(Path(__file__).with_name("reward_peers.py").resolve()), name],
            input="".join(json.dumps({"prediction": row["prediction"], "gold": row["gold"]}) + "\n" for row in rows),
            capture_output=True,
            text=True,
            cwd=folder,
        )
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    if len(verdicts) != len(rows):
        print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return [verdict["correct"] for verdict in verdicts], [verdict["seconds"] for verdict in verdicts]


def share(verdicts: list[bool], rows: list[Row]) -> dict[str, Any]:
    """Accuracy with its false accepts and rejects."""
    wrong = [row for verdict, row in zip(verdicts, rows, strict=True) if verdict is not row["label"]]
    return {
        "cases": len(rows),
        "accuracy": 1 - len(wrong) / len(rows),
        "false_accepts": [brief(row) for row in wrong if not row["label"]],
        "false_rejects": [brief(row) for row in wrong if row["label"]],
    }


def brief(row: Row) -> dict[str, str]:
    return {"id": row["id"], "kind": row["kind"], "gold": row["gold"][:80], "prediction": row["prediction"][-120:]}


def percentile(seconds: list[float], part: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(part * len(seconds)))]


def accuracy(data: Path, interpreter: str | None) -> dict[str, Any]:
    cases, chains = read(data / "reward_cases_dev.jsonl"), read(data / "real_cot_dev.jsonl")
    for row in chains:
        row.setdefault("kind", "real_cot")
    plain = [row for row in cases if not row.get("policy")]
    hacks = [row for row in cases if row["kind"].startswith(HACKS)]
    harmless = [row for row in plain if row["kind"] != "dos"]
    verdicts = {name: accepted(rows) for name, rows in (("plain", plain), ("hacks", hacks))}
    by_kind: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for verdict, row in zip(verdicts["plain"], plain, strict=True):
        by_kind[row["kind"]][0] += verdict is row["label"]
        by_kind[row["kind"]][1] += 1
    result: dict[str, Any] = {
        "turntree": {
            "without_policy_rows": share(verdicts["plain"], plain),
            "hacks": share(verdicts["hacks"], hacks),
            "ungraded": sum(one.correct is None for one in graded(cases)),
            "without_inputs_made_to_hang": share(accepted(harmless), harmless),
            "real_chains": share(accepted(chains), chains),
        },
        "by_kind": {kind: f"{right}/{total}" for kind, (right, total) in sorted(by_kind.items())},
    }
    for name in PEERS:
        python = interpreter if name == "math_verify" else sys.executable
        if python is None:
            continue
        found = peer(name, harmless + chains, python)
        if found is not None:
            right = found[0]
            result[name] = {
                "without_inputs_made_to_hang": share(right[: len(harmless)], harmless),
                "real_chains": share(right[len(harmless) :], chains),
            }
    return result


def speed(data: Path, interpreter: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {}
    integers = [row for row in read(data / "dapo_17k" / "train.jsonl") if row["answer"].isdigit()]
    rows = [{"prediction": f"So the answer is \\boxed{{{row['answer']}}}.", "gold": row["answer"]} for row in integers]
    rates = []
    for _ in range(9):
        began = time.perf_counter()
        graded(rows)
        rates.append(len(rows) / (time.perf_counter() - began))
    result["integers_per_second"] = max(rates)  # the round that other processes disturbed least
    answers = [str(row["answer"]) for row in read(data / "math500" / "test.jsonl")]
    others = answers[1:] + answers[:1]
    pairs = [(gold, other) for gold, other in zip(answers, others, strict=True) if gold != other]
    wrong = [{"prediction": f"\\boxed{{{other}}}", "gold": gold} for gold, other in pairs]
    score(r"\boxed{x+x}", "2x", question="")
    with Grader(cache_size=0) as grader:
        score(r"\boxed{x+x}", "2x", question="", grader=grader)
        began = time.perf_counter()
        graded(wrong, grader)
        result["math500_wrong_per_second"] = len(wrong) / (time.perf_counter() - began)
        latencies = []
        for row in wrong:
            began = time.perf_counter()
            score(row["prediction"], row["gold"], question="", grader=grader)
            latencies.append(time.perf_counter() - began)
        result["math500_wrong_p99_seconds"] = percentile(latencies, 0.99)
    peers = {}
    for name in PEERS:
        python = interpreter if name == "math_verify" else sys.executable
        if python is not None and (found := peer(name, wrong[:120], python)) is not None:
            seconds = found[1][1:]
            peers[name] = {"per_second": len(seconds) / sum(seconds), "p99_seconds": percentile(seconds, 0.99)}
    result["math500_wrong_peers"] = peers
    return result


def hostile(data: Path) -> dict[str, Any]:
    gsm = read(data / "gsm8k" / "test.jsonl", 980)
    rows = [{"prediction": f"We find\n#### {row['answer']}", "gold": str(row["answer"])} for row in gsm]
    rows += [{"prediction": f"\\boxed{{{BOXED[n % len(BOXED)]}}}", "gold": "\\sqrt{5}"} for n in range(20)]
    random.Random(0).shuffle(rows)
    result: dict[str, Any] = {}
    with Grader() as grader, tempfile.TemporaryDirectory() as folder:
        score(r"\boxed{x+x}", "2x", question="", grader=grader)
        began = time.perf_counter()
        graded(rows, grader)
        result["thousand_with_2_percent_hostile_seconds"] = time.perf_counter() - began
        slowest, right = 0.0, 0
        cases = [row for row in read(data / "reward_cases_dev.jsonl") if row["kind"] == "dos"]
        inputs = [(f"\\boxed{{{text}}}", gold) for text in BOXED for gold in ("7", r"\frac{x^2+1}{2}", r"\{1,2\}")]
        inputs += [(row["prediction"], row["gold"]) for row in cases if not row["label"]]
        for text, gold in inputs:
            began = time.perf_counter()
            right += bool(score(text, gold, question="", grader=grader).correct)
            slowest = max(slowest, time.perf_counter() - began)
        result["slowest_hostile_input_seconds"] = slowest
        result["hostile_inputs"] = len(inputs)
        result["hostile_inputs_taken_as_right"] = right
        canary = Path(folder) / "canary"
        boxed = (f"\\boxed{{{code.replace('{canary}', str(canary))}}}" for code in CODE)
        payloads = [{"prediction": text, "gold": "7"} for text in boxed]
        result["code_ran"] = any(accepted(payloads)) or canary.exists()
        for pid in grader.worker_pids():
            os.kill(pid, signal.SIGKILL)
        pairs = [(f"\\boxed{{\\sqrt{{{2 * n * n}}}}}", f"{n}\\sqrt{{2}}") for n in range(2, 22)]
        after = [score(text, gold, question="", grader=grader).correct for text, gold in pairs]
        result["right_after_workers_were_killed"] = sum(map(bool, after)) / len(after)
    return result


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def memory(scores: int) -> dict[str, Any]:
    """Resident MiB of the caller and of the largest worker while scoring."""
    sizes = []
    with Grader() as grader:
        for block in range(10):
            texts, golds = [], []
            for n in range(block * scores // 10, (block + 1) * scores // 10):
                texts.append(f"\\boxed{{{n}}}" if n % 5 else f"\\boxed{{\\frac{{{n}}}{{x}}+\\sqrt{{{n % 97}}}}}")
                golds.append(str(n + n % 2) if n % 5 else f"\\sqrt{{{n % 97}}}+\\frac{{{n}}}{{x}}")
            score_batch(texts, golds, questions=[""] * len(texts), grader=grader)
            sizes.append((resident(os.getpid()), max(map(resident, grader.worker_pids()), default=0)))
    return {"scores": scores, "caller_mib": [size[0] for size in sizes], "worker_mib": [size[1] for size in sizes]}


def table(result: dict[str, Any]) -> None:
    ours, fast, bad, size = result["accuracy"], result["speed"], result["hostile"], result["memory"]
    plain, hacks = ours["turntree"]["without_policy_rows"], ours["turntree"]["hacks"]
    peers = {name: ours[name]["without_inputs_made_to_hang"] for name in PEERS if name in ours}
    best = max(peers, key=lambda name: peers[name]["accuracy"], default=None)
    rate = fast["math500_wrong_peers"].get("math_verify", {})
    top = peers.get(best or "", {})
    caller, worker = size["caller_mib"], size["worker_mib"]
    chains = ", ".join(f"{name} {ours[name]['real_chains']['accuracy']:.1%}" for name in PEERS if name in ours)
    accepts, rejects = plain["false_accepts"], plain["false_rejects"]
    rows = [
        ("accuracy without policy rows", ">= 97 %", f"{plain['accuracy']:.1%} of {plain['cases']}",
         f"{top['accuracy']:.1%} ({best}, hanging inputs left out)" if top else ""),
        ("false accepts / rejects", "<= 0.5 % / 2.5 %", f"{len(accepts)} / {len(rejects)}",
         f"{len(top['false_accepts'])} / {len(top['false_rejects'])}" if top else ""),
        ("hacking and denial of service", ">= 98 %", f"{hacks['accuracy']:.1%} of {hacks['cases']}", ""),
        ("real chains of thought", "", f"{ours['turntree']['real_chains']['accuracy']:.1%}", chains),
        ("slowest single input", "<= 1.2 s",
         f"{bad['slowest_hostile_input_seconds']:.2f} s of {bad['hostile_inputs']}", ""),
        ("code run", "none", "some" if bad["code_ran"] else "none", ""),
        ("integers", ">= 50,000/s", f"{fast['integers_per_second']:,.0f}/s", ""),
        ("MATH-500, wrong answers", ">= 300/s", f"{fast['math500_wrong_per_second']:,.0f}/s",
         f"{rate['per_second']:.0f}/s" if rate else ""),
        ("their 99th percentile", "<= 200 ms", f"{fast['math500_wrong_p99_seconds'] * 1e3:.1f} ms",
         f"{rate['p99_seconds'] * 1e3:.0f} ms" if rate else ""),
        ("1000 answers, 2 % hostile", "<= 10 s", f"{bad['thousand_with_2_percent_hostile_seconds']:.2f} s", ""),
        ("right after workers were killed", "all", f"{bad['right_after_workers_were_killed']:.0%}", ""),
        (f"memory over {size['scores']:,} scores, MiB", "bounded",
         f"caller {caller[0]} to {caller[-1]}, worker {worker[0]} to {worker[-1]}", ""),
    ]  # fmt: skip
    columns = ("figure", "goal", "turntree", "others")
    show("Rewards", columns, rows, words=columns)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--math-verify", help="an interpreter with math-verify")
    parser.add_argument("--scores", type=int, default=100_000, help="of the memory figure")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "command": f"python benchmarks/rewards.py --data DIR{' --math-verify PYTHON' if args.math_verify else ''}",
        "machine": f"{hardware()}, Python {platform.python_version()}",
        "accuracy": accuracy(args.data, args.math_verify),
        "speed": speed(args.data, args.math_verify),
        "hostile": hostile(args.data),
        "memory": memory(args.scores),
    }
    table(result)
    show(
        "Accuracy by kind, without policy rows",
        ("kind", "right"),
        result["accuracy"]["by_kind"].items(),
        words=("kind",),
    )
    for what in ("false_accepts", "false_rejects"):
        for group in ("without_policy_rows", "hacks", "real_chains"):
            for row in result["accuracy"]["turntree"][group][what]:
                print(f"{what[:-1].replace('_', ' ')}, {group}: {row}")
    keep(args.json, without_texts(result))


def without_texts(result: Any) -> Any:
    """The result with cases named by kind and id, because their texts belong to others."""
    if isinstance(result, dict):
        return {key: without_texts(value) for key, value in result.items()}
    if isinstance(result, list):
        return [
            f"{value['kind']} {value['id']}" if isinstance(value, dict) else without_texts(value) for value in result
        ]
    return result


if __name__ == "__main__":
    main()
