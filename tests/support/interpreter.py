import subprocess
import sys
from typing import Any

from machine_speed import patience


def python(*words: str, seconds: float = 600, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this interpreter to its end; the options are those of ``subprocess.run``."""
    given = {"capture_output": True, "text": True, "timeout": patience(seconds), **options}
    return subprocess.run([sys.executable, *words], **given)
