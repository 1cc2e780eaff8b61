import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import warm_driver
from machine_speed import patience

from turntree.agents.verl.run import fork_client

SECONDS = 240.0  #: until a server must answer

Client = TypeVar("Client")


@contextmanager
def serving(
    command: Sequence[str], find: Callable[[], Client | None], log: Path, environment: Mapping[str, str]
) -> Iterator[Client]:
    """Run a server until the end of the block; ``find`` makes the client, or ``None`` while nothing answers.

    If a fork server runs, a ``command`` of the form interpreter, ``-m``, module, arguments becomes a fork.
    """
    if command[1] == "-m" and warm_driver.SOCKET in os.environ:
        forked = [command[0], "-S", fork_client.__file__, os.environ[warm_driver.SOCKET], warm_driver.__file__]
        command = [*forked, *command[1:]]
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **environment}, start_new_session=True
        )
    try:
        until = time.monotonic() + patience(SECONDS)
        while (client := find()) is None:
            if server.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"{command[3]} does not answer: {log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.5)
        yield client
    finally:
        with suppress(ProcessLookupError):  # it may be gone
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(patience(20))
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
