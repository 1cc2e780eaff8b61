"""verl's processes as forks of one that has imported what they need, which takes ten seconds, once a test session.

Run as a script it is ``turntree.agents.verl.run.prefork`` in such a fork: the driver of a training.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from turntree.agents.verl import launch
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.run import fork_client, prefork

_SERVER = """
import sys
from pathlib import Path
from turntree.agents.verl.run.prefork import _start_server
_start_server(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.read()
"""
_cold = launch.command


@cache
def warm_socket() -> Path:
    """Of a fork server that ends with this process."""
    folder = tempfile.mkdtemp(prefix="tt-", dir="/tmp")  # paths of sockets are short
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    read_by_imports = {"TURNTREE_VERL_CPU": "1", "TOKENIZERS_PARALLELISM": "false", "VERL_LOGGING_LEVEL": "WARN"}
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, f"{folder}/fork"],
        env={**os.environ, **read_by_imports},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    atexit.register(server.stdin.close)
    return Path(folder, "fork")


def command(folder: RunFolder, socket: Path | None) -> list[str]:
    """In place of ``launch.command``, where a training's workers are forks as well."""
    words = _cold(folder, socket)
    if socket is None:
        return words
    return [sys.executable, "-S", fork_client.__file__, str(warm_socket()), __file__, *words[3:]]


_start_server = prefork._start_server


def _start_server_and_patch(path: Path) -> None:
    """The workers' server is forked before Ray is imported."""
    _start_server(path)
    start_no_more_of_ray()


def start_no_more_of_ray() -> None:
    """Keep Ray from starting its autoscaler and its report of usage, interpreters that import for seconds: nothing here
    asks them. A Ray that starts without them is one whose dashboard could not be started."""
    from ray._private import services
    from ray._private.node import Node

    Node.start_monitor = lambda node: None
    services.start_api_server = lambda *given, **named: (None, None)


if __name__ == "__main__":
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    prefork._start_server = _start_server_and_patch
    prefork.main(sys.argv[1:])
