import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from machine_speed import patience

NAME = "tiny"


@contextmanager
def served_command(model: Path, log: Path, *options: str) -> Iterator[str]:
    """Yield the URL of a running ``turntree serve``; SIGTERM at the end must stop it cleanly."""
    words = ["serve", str(model), "--port", "0", "--name", NAME, *options]
    command = [sys.executable, "-m", "turntree.agents.cli", *words]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment) as process,
    ):
        try:
            assert process.stdout is not None, "started with a pipe"
            ready = b""
            while not ready.startswith(f"{NAME} at http".encode()):  # engines write there, too
                ready = process.stdout.readline()
                assert ready, _end_of(log)
            yield ready.split()[-1].decode()
            process.terminate()
            process.wait(timeout=patience(60))
        finally:
            process.kill()
    assert process.returncode == 0, _end_of(log)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]
