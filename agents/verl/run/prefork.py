"""Run verl's driver and, next to the driver, the server whose forks are Ray's workers.

``python -m turntree.agents.verl.run.prefork [--socket=PATH] ARGUMENT...`` imports verl while the run is being
prepared, waits for a line on standard input, and then runs ``python -m verl.trainer.main_ppo ARGUMENT...``. With a
socket, Ray's workers are forked (see ``fork_server``).
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import runpy
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from turntree.agents.verl.records.phases import note_phase

DRIVER = "verl.trainer.main_ppo"
_SOCKET = "--socket="
# The slowest imports of verl's processes; missing optional packages are skipped. No module here may import Ray, because
# Ray reads a worker's own values (such as the job) from the environment at import.
PRELOADED = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "tensordict",
    "transformers.modeling_utils",
    "transformers.processing_utils",
    "transformers.models.llama.modeling_llama",
    "peft",
    "scipy.optimize",
    "datasets",
    "pandas",
    "pyarrow.parquet",
    "requests",
    "aiohttp",
    "fastapi",
    "uvicorn",
    "zmq",
    "hydra",
    "turntree.agents.engines.local.engine",
    "turntree.agents.turn_drafts.pipeline",
    "turntree.agents.loop.renderer",
    "turntree.agents.loop.rollout",
    "turntree.agents.turn_drafts.stored",
    "turntree.agents.scoring.scorer",
    "turntree.spec_tree.store.forest",
)


def command(socket: Path | None, arguments: Sequence[str]) -> list[str]:
    """Return the driver's command line; without a socket, no fork server starts."""
    own = [] if socket is None else [f"{_SOCKET}{socket}"]
    return [sys.executable, "-m", __spec__.name, *own, *arguments]


def py_executable(socket: Path) -> str:
    """Return Ray's ``runtime_env.py_executable`` for forked workers, quoted for a shell."""
    client = Path(__file__).with_name("fork_client.py")
    return shlex.join([sys.executable, "-S", str(client), str(socket)])


def main(arguments: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell makes background jobs ignore SIGINT
    sockets = [word.removeprefix(_SOCKET) for word in arguments if word.startswith(_SOCKET)]
    gc.disable()  # imports create objects that stay alive, so collections would free nothing
    if sockets:
        _start_server(Path(sockets[0]))
    importlib.import_module(DRIVER)
    gc.freeze()
    gc.enable()
    if sys.stdin.readline() == "":
        return  # the launcher has ended
    note_phase("starting Ray")
    sys.argv = [DRIVER, *(word for word in arguments if not word.startswith(_SOCKET))]
    runpy.run_module(DRIVER, run_name="__main__", alter_sys=True)


def _start_server(path: Path) -> None:
    from turntree.agents.verl.run.fork_server import become, listen, serve

    for name in PRELOADED:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    gc.freeze()
    listener = listen(path)
    reading, writing = os.pipe()
    if os.fork():
        listener.close()
        os.close(reading)
        return
    os.close(writing)
    gc.enable()
    request = serve(listener, reading)
    if request is not None:
        become(request)
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
