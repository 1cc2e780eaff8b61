"""Run stages one after another, each in a process, and add their results to a file.

A stage that crashes, hangs or runs out of memory becomes a row with the last line of its log, and the other stages
still run. Processes left behind by a stage are ended with it if they are in its process group.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.provenance import kept_from, provenance
from common.script import keep

from first_hour.setting import Row
from first_hour.stages import Stage

PACKAGES = ("torch", "transformers", "triton")  #: versions recorded with every stage
_ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception|Interrupt|Exit)\b.*")
GRACE_SECONDS = 30.0  #: for a stage to end after SIGTERM
_LONGEST = 300

Result = dict[str, Any]  #: ``outcome`` (done, failed or skipped), ``note``, ``seconds``, ``versions``, ``rows``


class Results:
    """The file of the results; a stage that is done there does not run again."""

    def __init__(self, file: Path, *, settings: Row, device: str) -> None:
        """Continue with the file's results.

        Raises:
            SystemExit: If it was measured on another machine or with other settings.
        """
        self.file = file
        about = {**provenance(PACKAGES, device=device), "settings": settings}
        self.report: dict[str, Any] = {**about, "stages": kept_from(file, about).get("stages", {})}

    def done(self, name: str) -> bool:
        return bool(self.report["stages"].get(name, {}).get("outcome") == "done")

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self.report["stages"].pop(name, None)

    def put(self, name: str, result: Result) -> None:
        self.report["stages"][name] = result
        keep(self.file, self.report)


def run_all(
    stages: Iterable[Stage],
    results: Results,
    command: Callable[[Stage, Path], Sequence[str]],
    *,
    say: Callable[[Stage, Result], None],
) -> bool:
    """Run the stages that are not done; return whether none failed.

    Args:
        stages: In order.
        results: File of the results.
        command: Command of a stage's process, which writes its rows as JSON to a file.
        say: Called after each stage.
    """
    whole = True
    for stage in stages:
        if results.done(stage.name):
            continue
        if stage.skipped:
            result: Result = {"outcome": "skipped", "note": f"skipped: {stage.skipped}", "rows": []}
        else:
            result = run_stage(stage, command, results.file.parent)
        results.put(stage.name, result)
        whole &= result["outcome"] != "failed"
        say(stage, result)
    return whole


def run_stage(stage: Stage, command: Callable[[Stage, Path], Sequence[str]], folder: Path) -> Result:
    log, file = folder / "logs" / f"{stage.name}.log", folder / "logs" / f"{stage.name}.json"
    log.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    began, late = time.monotonic(), False
    with log.open("wb") as out:
        process = subprocess.Popen(command(stage, file), stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.wait(60 * stage.minutes)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            if process.poll() is None:  # a training ends Ray's processes, which are in no group of ours
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    rows = json.loads(file.read_text()) if file.exists() else []
    result = {
        "outcome": "done" if rows else "failed",
        "note": "",
        "seconds": round(time.monotonic() - began, 1),
        "versions": provenance((*PACKAGES, *stage.packages))["versions"],
        "rows": rows,
    }
    broken = [str(row["claim"]) for row in rows if row.get("holds") is False]
    if broken:
        result |= {"outcome": "failed", "note": f"does not hold: {'; '.join(broken)}"}
    if not rows:
        why = f"not done after {stage.minutes:g} minutes" if late else last_error(log.read_text(errors="replace"))
        result["note"] = f"{why} (status {process.returncode}; {log})"
    return result


def last_error(log: str) -> str:
    """The last line that names an exception, else the last line.

    >>> last_error("Traceback ...\\ntorch.OutOfMemoryError: 2 GiB\\n[rank0] bye")
    'torch.OutOfMemoryError: 2 GiB'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    return (errors or lines or ["no word"])[-1][:_LONGEST]
