"""A program that searches ``/proc`` for other programs' keys while they run."""

import os
import re
import sys
import time
from pathlib import Path

from programs import Policy, user

TOGETHER = 2


def meet(folder: Path, where: str) -> None:
    (folder / f"{where}-{os.environ['TASK_SEED']}").touch()
    for _ in range(15_000):
        if len(list(folder.glob(f"{where}-*"))) >= TOGETHER:
            break
        time.sleep(0.02)


def readable() -> bytes:
    seen = b""
    for file in [*Path("/proc").glob("[0-9]*/environ"), *Path("/proc").glob("[0-9]*/cmdline")]:
        try:
            seen += file.read_bytes()
        except OSError:  # it has ended, or is somebody else's
            continue
    return seen


def main() -> None:
    folder, own = Path(sys.argv[1]), os.environ["OPENAI_API_KEY"]
    meet(folder, "began")
    keys = {key.decode() for key in re.findall(rb"OPENAI_API_KEY=([0-9a-f]+)", readable())}
    assert own in keys
    meet(folder, "looked")
    Policy(os.environ["OPENAI_BASE_URL"], own, os.environ["OPENAI_MODEL"]).ask([user("say something")])
    print(len(keys - {own}), os.readlink("/proc/self/ns/pid"))


if __name__ == "__main__":
    main()
