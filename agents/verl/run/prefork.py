"""verl's driver, and beside it the server whose forks are Ray's workers: what ``turntree train`` starts.

``python -m turntree.agents.verl.run.prefork [--socket=PATH] ARGUMENT...`` imports verl while the run is still being
prepared, waits for a line on standard input, and is ``python -m verl.trainer.main_ppo ARGUMENT...`` from then on.
With a socket, workers are forked (see ``fork_server``).
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

DRIVER = "verl.trainer.main_ppo"
_SOCKET = "--socket="
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
    "turntree.agents.reuse.prefix_reuse",
    "turntree.agents.loop.renderer",
    "turntree.agents.loop.rollout",
    "turntree.agents.reuse.run_ahead",
    "turntree.agents.scoring.scorer",
    "turntree.spec_tree.store.forest",
)
"""What verl's processes spend their start on importing. Nothing here imports Ray, which reads what is a worker's own
(its job, its parent) from the environment when it is imported."""


def command(socket: Path | None, arguments: Sequence[str]) -> list[str]:
    """The command line of a driver.

    Args:
        socket: Where the fork server is to listen; ``None`` starts none.
        arguments: Of verl's ``main_ppo``.
    """
    own = [] if socket is None else [f"{_SOCKET}{socket}"]
    return [sys.executable, "-m", __spec__.name, *own, *arguments]


def py_executable(socket: Path) -> str:
    """Ray's ``runtime_env.py_executable`` for workers that are forked, in the shell's grammar."""
    client = Path(__file__).with_name("fork_client.py")
    return shlex.join([sys.executable, "-S", str(client), str(socket)])


def main(arguments: Sequence[str]) -> None:
    """Fork the server, import verl, wait for the word, be verl."""
    sockets = [word.removeprefix(_SOCKET) for word in arguments if word.startswith(_SOCKET)]
    gc.disable()  # imports make objects that stay
    if sockets:
        _start_server(Path(sockets[0]))
    importlib.import_module(DRIVER)
    gc.freeze()
    gc.enable()
    if sys.stdin.readline() == "":
        return  # whoever prepared the run has given up
    sys.argv = [DRIVER, *(word for word in arguments if not word.startswith(_SOCKET))]
    runpy.run_module(DRIVER, run_name="__main__", alter_sys=True)


def _start_server(path: Path) -> None:
    """Import what workers need and fork the server. It ends with this process, whose end of a pipe is closed then."""
    from turntree.agents.verl.run.fork_server import become, listen, serve

    for name in PRELOADED:
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
