from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turntree.agents.verl.launch import StepReport, train
from turntree.agents.verl.records.recording import RunFolder


def trained(config: str, run: Path, steps: int, settings: Mapping[str, Any], *further: str) -> list[StepReport]:
    """Train with verl and return the report of each step.

    Args:
        config: A configuration of ``turntree.configs``, or a YAML file.
        run: Folder of the run.
        steps: Of the training.
        settings: By key.
        further: Settings as on the command line.

    Raises:
        RuntimeError: If verl did not finish the training.
    """
    reports: list[StepReport] = []
    own = {"turntree.run_dir": run, "trainer.total_training_steps": steps}
    status = train(config, [f"{k}={v}" for k, v in {**settings, **own}.items()] + [*further], on_step=reports.append)
    if status != 0 or len(reports) != steps:
        log = RunFolder(run).log
        end = log.read_text(errors="replace")[-3000:] if log.is_file() else ""
        raise RuntimeError(f"verl ended with status {status} after {len(reports)} of {steps} steps: {end}")
    return reports
