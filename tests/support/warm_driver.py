"""verl's processes as forks of one that has imported what they need, which takes ten seconds, once a test session.

Run as a script it is ``turntree.agents.verl.run.prefork`` in such a fork: the driver of a training; or, after ``-m``,
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
SOCKET = "TURNTREE_TEST_FORKS"
"""Variable with the path of a fork server that is there already, with an engine in it: ``warm_engine``."""
READ_BY_IMPORTS = {"TURNTREE_VERL_CPU": "1", "TOKENIZERS_PARALLELISM": "false", "VERL_LOGGING_LEVEL": "WARN"}


def warm_socket() -> Path:
    """Of a fork server that ends with this process, or with its parent."""
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
    asks them. A Ray that starts without them is one whose dashboard could not be started; an agent of the dashboard
    imports little where it is not installed. Workers begin with this folder's ``setup_worker.py``."""
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
