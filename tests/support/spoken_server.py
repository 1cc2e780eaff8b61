"""A gateway process with a rule as its policy: sums, some wrong, by tools where two are offered.

    python spoken_server.py RECORD

Its first line of output is its URL, like that of ``turntree serve``.
"""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from machine_speed import patience

SUM = re.compile(r"What is (\d+) \* (\d+) \+ (\d+)\?")
MODEL = "rule"


class SpokenServer(NamedTuple):
    url: str  #: with ``/v1``
    record: Path  #: the run's folder with the ended sessions
    process: subprocess.Popen[str]

    def end(self) -> None:
        # An orderly end records the open sessions.
        self.process.terminate()
        assert self.process.wait(patience(120)) == 0


def question(number: int) -> str:
    return f"What is {number + 2} * {number + 3} + {number + 5}?"


def gold(number: int) -> int:
    return (number + 2) * (number + 3) + number + 5


def right(number: int) -> bool:
    return bool(number % 3)


def call(name: str, a: int, b: int) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'


def say(prompt: str) -> str:
    """Return the policy's turn: the answer, or the next of two calls if two tools are offered."""
    asked = [*SUM.finditer(prompt)][-1]
    a, b, c = map(int, asked.groups())
    told = re.findall(r"<\|im_start\|>tool\n(-?\d+)", prompt[asked.end() :])
    if '"multiply"' in prompt and not told:
        return "First the product.\n" + call("multiply", a, b)
    if '"add"' in prompt and len(told) == 1:
        return call("add", int(told[0]), c)
    answer = int(told[-1]) if told else a * b + c + (0 if right(a - 2) else 1)
    return f"It is {a} * {b} and {c} more.\n#### {answer}"


@contextmanager
def spoken_server(folder: Path) -> Iterator[SpokenServer]:
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, str(folder / "record")]
    with (
        (folder / "spoken_server.log").open("w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": paths}
        ) as process,
    ):
        try:
            assert process.stdout is not None, "started with a pipe"
            yield SpokenServer(process.stdout.readline().split()[-1], folder / "record", process)
        finally:
            with suppress(ProcessLookupError):
                process.kill()


def main() -> None:
    from chat_tokenizers import chatml_tokenizer
    from gateways import SpokenEngine

    from turntree.agents.gateway.app import Gateway, make_app
    from turntree.agents.gateway.http.server import listen, run
    from turntree.agents.gateway.http.settings import GatewaySettings
    from turntree.agents.loop.renderer import Renderer

    tokenizer = chatml_tokenizer()
    settings = GatewaySettings(model=MODEL, max_context=8192, port=0, record=Path(sys.argv[1]))
    gateway = Gateway(SpokenEngine(tokenizer, say), Renderer(tokenizer), settings)
    with listen(settings) as at:
        port = at.getsockname()[1]

        def ready() -> None:
            sys.stdout.write(f"{MODEL} at http://127.0.0.1:{port}/v1\n")
            sys.stdout.flush()

        asyncio.run(run(make_app(gateway), settings, at, closing=lambda: None, ready=ready))
    gateway.paths.close_all()


if __name__ == "__main__":
    main()
