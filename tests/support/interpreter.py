"""Another interpreter, run to its end."""

import subprocess
import sys
from typing import Any

from machine_speed import patience


def python(*words: str, seconds: float = 600, **options: Any) -> subprocess.CompletedProcess[str]:
    """Options as of ``subprocess.run``; what it says is kept as text. It hangs after ``patience(seconds)``."""
    given = {"capture_output": True, "text": True, "timeout": patience(seconds), **options}
    return subprocess.run([sys.executable, *words], **given)
