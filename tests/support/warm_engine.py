"""Run test files in forks of a process that has imported an engine, which takes ten seconds.

``python tests/support/warm_engine.py ENGINE [OPTION]... -- FILE...``: the options are pytest's. Each SGLang file gets a
process of its own, since SGLang's engine changes the process that started it. Processes that the engines spawn, verl's
training processes (``warm_driver``) and the servers of ``served`` are forks as well. The exit status is the largest of
pytest's; a file without a test of the chosen kind is not a failure.
"""

import atexit
import gc
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

import warm_driver

from turntree.agents.verl.run import prefork

SPAWNED = "--multiprocessing-fork"
#: modules by engine; none imports Ray (``prefork.PRELOADED``)
IMPORTED = {
    "sglang": ("sglang.srt.entrypoints.http_server", "turntree.agents.engines.sglang.worker.drafter"),
    "vllm": ("vllm.entrypoints.openai.api_server",),
}
NO_TEST = 5  #: pytest's status when no test was selected


def run(arguments: Sequence[str]) -> int:
    engine, at = arguments[0], arguments.index("--")
    options, files = arguments[1:at], arguments[at + 1 :]
    if engine == "sglang":
        from cpu_sglang import prepare

        prepare()
    os.environ.update(warm_driver.READ_BY_IMPORTS)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # see conftest.py
    gc.disable()
    for name in (*IMPORTED[engine], *prefork.PRELOADED):
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    folder = Path(tempfile.mkdtemp(prefix="tt-", dir="/tmp"))  # paths of sockets are short
    os.environ[warm_driver.SOCKET] = str(folder / "fork")
    multiprocessing.spawn.set_executable(str(forking_python(folder)))
    start_server(folder / "fork")
    try:
        runs = [[file] for file in files] if engine == "sglang" else [files]
        return max({run_files([*options, *some]) for some in runs} - {NO_TEST}, default=0)
    finally:
        shutil.rmtree(folder)


def start_server(path: Path) -> None:
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
    """Write a stand-in for the interpreter, so that the fork server forks what ``multiprocessing`` spawns.

    The fork ends with the process that spawned it, as engines do.
    """
    from turntree.agents.verl.run import fork_client

    ending = (
        "import ctypes, runpy, sys; ctypes.CDLL(None).prctl(1, 9); "
        f"sys.argv[:1] = []; runpy.run_path({fork_client.__file__!r}, run_name='__main__')"
    )
    client = [sys.executable, "-S", "-c", ending, fork_client.__file__, f"{folder}/fork", __file__, SPAWNED]
    path = folder / "python"
    path.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *{SPAWNED}*) exec {shlex.join(client)} $$ "$@" ;; esac\n'
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    path.chmod(0o700)
    return path


def run_files(arguments: list[str]) -> int:
    if pid := os.fork():
        return abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    sys.argv = ["pytest", *arguments]
    end_after(lambda: runpy.run_module("pytest", run_name="__main__", alter_sys=True))


def end_after(main: Callable[[], Any]) -> NoReturn:
    # Exits without running the clean-up that the parent registered.
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
    # Only pipes can be reopened by number; SGLang passes nothing else to its processes.
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
