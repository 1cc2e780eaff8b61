from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from turntree.agents.evaluation.machine import hardware, version_of


def command_line() -> str:
    return shlex.join(["python", *sys.argv])


def provenance(packages: Iterable[str], *, device: str = "cpu") -> dict[str, Any]:
    """Return machine, Python, versions and command.

    Args:
        packages: Distributions that affect the figures; one that is not installed has the version "-".
        device: Torch device.
    """
    return {
        "machine": hardware(device),
        "python": platform.python_version(),
        "versions": {package: version_of(package) or "-" for package in packages},
        "command": command_line(),
    }


def kept_from(file: Path | None, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of an earlier run that this run continues; empty if there is no file.

    Args:
        file: Of the results.
        about: The header of this run; "settings" and "machine" must equal those of the file.

    Raises:
        SystemExit: If they differ.
    """
    if file is None or not file.exists():
        return {}
    kept: dict[str, Any] = json.loads(file.read_text())
    for what in ("settings", "machine"):
        if kept.get(what) != about[what]:
            sys.exit(f"{file} was measured with other {what} ({kept.get(what)}); name another file")
    return kept
