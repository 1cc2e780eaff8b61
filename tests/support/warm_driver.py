"""verl's processes as forks of a process that has done the imports, which take ten seconds, once per session.

As a script, this is ``turntree.agents.verl.run.prefork`` in such a fork, the driver of a training; after ``-m``, it is
another module.
"""

import atexit
import os
import runpy
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
SOCKET = "TURNTREE_TEST_FORKS"  #: variable with the path of an existing fork server that has an engine: ``warm_engine``
READ_BY_IMPORTS = {"TURNTREE_VERL_CPU": "1", "TOKENIZERS_PARALLELISM": "false", "VERL_LOGGING_LEVEL": "WARN"}


def warm_socket() -> Path:
    # The fork server ends with this process, or with its parent.
    return Path(os.environ[SOCKET]) if SOCKET in os.environ else _own_socket()


@cache
def _own_socket() -> Path:
    folder = tempfile.mkdtemp(prefix="tt-", dir="/tmp")  # paths of sockets are short
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, f"{folder}/fork"],
        env={**os.environ, **READ_BY_IMPORTS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    atexit.register(server.stdin.close)
    return Path(folder, "fork")


def command(folder: RunFolder, socket: Path | None) -> list[str]:
    words = _cold(folder, socket)
    if socket is None:
        return words
    return [sys.executable, "-S", fork_client.__file__, str(warm_socket()), __file__, *words[3:]]


_start_server = prefork._start_server


def _start_server_and_patch(path: Path) -> None:
    # The workers' server must fork before Ray is imported.
    _start_server(path)
    start_no_more_of_ray()


def start_no_more_of_ray() -> None:
    """Keep Ray from starting its autoscaler and usage report, two interpreters that import for seconds.

    Ray starts without them when its dashboard fails to start; the dashboard's agent imports little where the dashboard
    is not installed. Workers start with this folder's ``setup_worker.py``.
    """
    from ray._private import ray_constants, services, utils
    from ray._private.node import Node

    ray_constants.SETUP_WORKER_FILENAME = str(Path(__file__).with_name(ray_constants.SETUP_WORKER_FILENAME))

    utils.get_dashboard_dependency_error = lambda: ImportError("it is not needed")

    Node.start_monitor = lambda node: None
    services.start_api_server = lambda *given, **named: (None, None)


if __name__ == "__main__":
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if sys.argv[1] == "-m":
        sys.argv = sys.argv[2:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        prefork._start_server = _start_server_and_patch
        prefork.main(sys.argv[1:])
