"""Another interpreter, run to its end."""

import subprocess
import sys
from typing import Any


def python(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Options as of ``subprocess.run``; what it says is kept as text."""
    return subprocess.run([sys.executable, *words], **{"capture_output": True, "text": True, **options})
