"""Runs test files in a process each, all of them forks of one that has imported SGLang, which takes ten seconds.

``python tests/support/warm_sglang.py [OPTION]... -- FILE...``: options are pytest's. What SGLang spawns for engines is
forked too, where they run in the process of a test. The status is the largest of pytest's; that a file has no test of
the chosen kind is no failure.
"""

from __future__ import annotations

import atexit
import importlib
import multiprocessing.spawn
import os
import runpy
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

SPAWNED = "--multiprocessing-fork"
IMPORTED = (
    "sglang.srt.entrypoints.engine",
    "transformers.models.llama.modeling_llama",
    "turntree.agents.engines.sglang.worker.drafter",
)
NO_TEST = 5
"""pytest's status where no test was chosen."""


def run(arguments: Sequence[str]) -> int:
    """Run the files one after another; the largest status."""
    from cpu_sglang import prepare

    prepare()
    for name in IMPORTED:
        importlib.import_module(name)
    folder = Path(tempfile.mkdtemp(prefix="tt-", dir="/tmp"))  # paths of sockets are short
    start_server(folder / "fork")
    python = forking_python(folder)
    at = arguments.index("--")
    try:
        return max({run_file([*arguments[:at], file], python) for file in arguments[at + 1 :]} - {NO_TEST}, default=0)
    finally:
        shutil.rmtree(folder)


def start_server(path: Path) -> None:
    """Fork the server that answers at a path until this process ends."""
    from turntree.agents.verl.run.fork_server import become, listen, serve

    listener = listen(path)
    parent, held = os.pipe()
    if os.fork():
        listener.close()
        os.close(parent)
        return
    os.close(held)
    request = serve(listener, parent)
    end_after(lambda: request and become(request))


def forking_python(folder: Path) -> Path:
    """A stand-in for the interpreter, by which what ``multiprocessing`` spawns is forked by the server in a folder."""
    from turntree.agents.verl.run import fork_client

    python, client, this = (shlex.quote(word) for word in (sys.executable, fork_client.__file__, __file__))
    path = folder / "python"
    path.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *{SPAWNED}*) exec {python} -S {client} {folder}/fork {this} {SPAWNED} $$ "$@" ;; esac\n'
        f'exec {python} "$@"\n'
    )
    path.chmod(0o700)
    return path


def run_file(arguments: list[str], python: Path) -> int:
    """pytest's status, in a fork."""
    if pid := os.fork():
        return abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    multiprocessing.spawn.set_executable(str(python))
    sys.argv = ["pytest", *arguments]
    end_after(lambda: runpy.run_module("pytest", run_name="__main__", alter_sys=True))


def end_after(main: Callable[[], Any]) -> NoReturn:
    """End this fork as ``main`` ends, before anything that its parent has begun is cleared up here too."""
    status: Any = 1
    try:
        main()
        status = 0
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)


def spawned(client: int, words: Sequence[str]) -> None:
    """Be what ``multiprocessing`` spawned as the process ``client``, whose files are opened under their numbers.

    Pipes alone can be: what SGLang passes to its processes are such.
    """
    for path in Path(f"/proc/{client}/fd").iterdir():
        if int(path.name) > 2 and os.readlink(path).startswith("pipe:"):
            flags = int(Path(f"/proc/{client}/fdinfo/{path.name}").read_text().split()[3], 8)
            opened = os.open(path, flags & os.O_ACCMODE)
            os.dup2(opened, int(path.name))
            os.close(opened)
    sys.argv = ["-c", SPAWNED]
    exec(words[words.index("-c") + 1])


if __name__ == "__main__":
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if sys.argv[1] == SPAWNED:
        spawned(int(sys.argv[2]), sys.argv[3:])
    else:
        sys.exit(run(sys.argv[1:]))
