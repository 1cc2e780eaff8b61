"""What a benchmark was run on and how, which each of them prints and writes beside its figures."""

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
    """The command line of this process."""
    return shlex.join(["python", *sys.argv])


def provenance(packages: Iterable[str], *, device: str = "cpu") -> dict[str, Any]:
    """Machine, Python, versions and command.

    Args:
        packages: Distributions that the figures depend on; one that is not installed has the version "-".
        device: Torch device.
    """
    return {
        "machine": hardware(device),
        "python": platform.python_version(),
        "versions": {package: version_of(package) or "-" for package in packages},
        "command": command_line(),
    }


def kept_from(file: Path | None, about: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier run left in a file, for one that goes on there; nothing where there is none.

    Args:
        file: Of the results.
        about: What this run would write beside its figures; "settings" and "machine" must be those of the file.

    Raises:
        SystemExit: If they are not.
    """
    if file is None or not file.exists():
        return {}
    kept: dict[str, Any] = json.loads(file.read_text())
    for what in ("settings", "machine"):
        if kept.get(what) != about[what]:
            sys.exit(f"{file} was measured with other {what} ({kept.get(what)}); name another file")
    return kept
