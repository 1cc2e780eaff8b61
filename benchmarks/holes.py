r"""What services, the sandbox, tools, evaluation files and data sets let through: one row a hole.

    python benchmarks/holes.py --data DIR [--before JSON] [--json OUT]

The holes of the rewards stand in ``reward_holes.py``. Every attack on the sandbox is run in each kind of isolation that
this machine offers, bounded to 200 MiB and 2 s; its row says how the run ended, how long it
took, and whether its supervisor was lost or grew. ``--before`` puts the figures beside those of an earlier run: this
script under an older version.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from common.provenance import provenance
from rich.console import Console
from rich.table import Table

from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.evaluation.evaluate import evaluate
from turntree.agents.loop.renderer import Renderer
from turntree.envs import Env, Limits, Message, Reply, Task, make, tool
from turntree.envs.sandbox import PythonSandbox, SandboxError, SandboxLimits
from turntree.envs.sandbox.processes import descendants

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from chat_tokenizers import CHATML, make_tokenizer
from escape_code import CHANNEL

LIMITS = SandboxLimits(seconds=2.0, memory_bytes=200 * 2**20, processes=8)
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
EPISODES, TOOL_SECONDS = 16, 2.0
_SPREAD = "import mmap, os, time\nfor _ in range(6):\n    if os.fork() == 0: break\n"
_HELD = "print('held beside others', flush=True); time.sleep(1000)"
ATTACKS = {
    "5. a frame that cannot be parsed": CHANNEL + "send(b'\\xff' * 64)",
    "5. half a frame": CHANNEL + "send(struct.pack('!I', 100)); time.sleep(1000)",
    "5. 'ok' in the worker's name, then exit code 3": CHANNEL
    + "send(frame({'status': 'ok', 'error': ''})); os._exit(3)",
    "5. a frame of 100 MiB": CHANNEL
    + "send(struct.pack('!I', 100 << 20))\nfor _ in range(100): send(b' ' * (1 << 20))",
    "6. 900 MiB by memfd_create": "import os, time\n"
    "for _ in range(60): os.write(os.memfd_create('x'), bytes(15 << 20))\n" + _HELD,
    "6. 900 MiB in shared mappings": _SPREAD + "m = mmap.mmap(-1, 150 << 20)\n"
    "for _ in range(150): m.write(bytes(1 << 20))\n" + _HELD,
    "6. 600 MiB in forks": _SPREAD + "x = b'x' * (100 << 20)\n" + _HELD,
    "6. five forks that share 80 MiB (legitimate)": "import os, time\nx = bytearray(80 << 20)\nfor _ in range(5):\n"
    "    if os.fork() == 0: time.sleep(1000)\ntime.sleep(0.5); print('fine')",
    "7. a file of the machine, without namespaces": "print(open('{secret}').read())",
    "7. a file beside it written, without namespaces": "open('{secret}.mark', 'w').write('was here'); print('written')",
}


def sandboxed(code: str, isolation: str) -> str:
    """How an attack ends."""
    settings = {"limits": LIMITS, "isolation": isolation, "python": PYTHON, "packages": False}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, PythonSandbox(**settings) as sandbox:
        os.chmod(folder, 0o777)
        secret = Path(folder, "gold")
        secret.write_text("the gold answer")
        sandbox.run("1")
        pid, begun = sandbox.supervisor_pid, time.monotonic()
        ended: list[str] = []

        def run() -> None:
            try:
                result = sandbox.run(code.replace("{secret}", str(secret)))
                ended.append(f"{result.status}: {' '.join((result.stdout or result.error).split())[-60:]}")
            except SandboxError as error:
                ended.append(f"lost: {error}")

        thread = Thread(target=run, daemon=True)
        thread.start()
        peak = 0
        while thread.is_alive() and time.monotonic() < begun + 3 * LIMITS.seconds:
            thread.join(0.02)
            peak = max(peak, _kilobytes(pid, "VmHWM:"))
        seconds = time.monotonic() - begun
        if thread.is_alive():
            os.kill(pid or 0, 9)
            thread.join()
            ended = [f"does not end ({ended[0]})"]
        alive = "" if peak < 64 << 10 else f", supervisor grew to {peak >> 10} MiB"
        return f"{ended[0]} ({seconds:.1f} s{alive})"


def _kilobytes(pid: int | None, name: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition(name)[2].split()[0])
    except (OSError, IndexError):
        return 0


def sandbox_rows() -> Iterator[tuple[str, str]]:
    for isolation in ("namespaces", "process"):
        for name, code in ATTACKS.items():
            if "without namespaces" not in name or isolation == "process":
                yield f"{name} [{isolation}]", sandboxed(code, isolation)
    with PythonSandbox(limits=LIMITS, session=True, python=PYTHON, packages=False) as sandbox:
        sandbox.run("import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin).start()")
        before = _ticks(sandbox)
        time.sleep(2)
        used = (_ticks(sandbox) - before) / os.sysconf("SC_CLK_TCK")
        yield "8. processor time of a session's thread within 2 s between two calls", f"{used:.2f} s"


def _ticks(sandbox: PythonSandbox) -> int:
    assert sandbox.supervisor_pid is not None
    texts = (Path(f"/proc/{pid}/stat").read_text() for pid in descendants(sandbox.supervisor_pid))
    return sum(sum(map(int, text.rpartition(")")[2].split()[11:13])) for text in texts)


class Slow(Env):
    """The policy calls a tool that takes ``TOOL_SECONDS``, and is right where it answered."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(tool_format="compact", limits=Limits(max_turns=2), **kwargs)

    @tool
    def wait(self, where: str) -> str:
        """Wait in a thread.

        Args:
            where: Anything.
        """
        time.sleep(TOOL_SECONDS)
        return "waited"

    @tool
    async def wait_later(self, where: str) -> str:
        """Wait in a coroutine.

        Args:
            where: Anything.
        """
        await asyncio.sleep(TOOL_SECONDS)
        return "waited"

    def task(self, index: int) -> Task:
        return Task(id=f"slow/{index}", prompt="Wait.")

    def reply(self, message: Message) -> Reply:
        return Reply(reward=float("waited" in [said.content for said in self.messages]), done=True)


async def by_evaluate(renderer: Renderer, engine: Any, count: int) -> list[float]:
    return [episode.reward for episode in await evaluate(Slow, engine, renderer, range(count), concurrency=count)]


async def by_verl(renderer: Renderer, engine: Any, count: int) -> list[float]:
    from omegaconf import OmegaConf

    from turntree.agents.verl.playing.player import EpisodePlayer

    lengths = {"prompt_length": 64, "response_length": 256, "max_num_seqs": 64}
    config = OmegaConf.create({"name": "turntree", "seed": 1, **lengths, "custom": {"turntree": {}}})
    player = EpisodePlayer(config, renderer.tokenizer)
    row = {"env_id": f"{__name__}:Slow", "env_kwargs": "{}", "global_steps": 1}
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
    plays = (player.play_group(sampling, {**row, "index": index}, lambda: engine, size=1) for index in range(count))
    return [float(output.reward_score or 0) for (output,) in await asyncio.gather(*plays)]


def make_renderer() -> Renderer:
    return Renderer(make_tokenizer(CHATML, special=["<|im_start|>", "<|im_end|>"], eos="<|im_end|>"))


def tool_rows() -> Iterator[tuple[str, str]]:
    renderer = make_renderer()
    for name, play in (("evaluate", by_evaluate), ("verl's player", by_verl)):
        for call in ("wait", "wait_later"):

            def say(prompt: tuple[int, ...], call: str = call) -> str:
                return "done" if "waited" in renderer.decode(prompt) else f"{call}(here)"

            seconds: list[float] = []
            rewards: list[float] = []
            asyncio.run(play(renderer, ScriptedEngine(lambda prompt: "done", renderer.tokenizer), 1))  # imports
            for count in (1, EPISODES):
                begun = time.monotonic()
                rewards += asyncio.run(play(renderer, ScriptedEngine(say, renderer.tokenizer), count))
                seconds.append(time.monotonic() - begun)
            right = f"{sum(rewards):.0f} of {len(rewards)} heard it"
            times = f"{seconds[1] / seconds[0]:.2f} times as long as 1 ({seconds[0]:.2f} s), {right}"
            yield f"9. {EPISODES} episodes, tool of {TOOL_SECONDS:g} s ({call}), {name}", times


def service_rows() -> Iterator[tuple[str, str]]:
    from catalogue_policies import INTEGERS, always, play_as, serve

    def listing(env: Env) -> Iterator[str]:
        *calls, _ = serve(env)
        yield from calls
        yield from always(" ".join(map(str, INTEGERS)))(env)

    for name, id, policy in (
        ("'Bye.' wins of the retail tasks", "turntree/RetailService-v0", always("Bye.")),
        ("right calls and all numbers win of the airline tasks", "turntree/AirlineService-v0", listing),
        ("right calls and what is to be told win of the airline tasks", "turntree/AirlineService-v0", serve),
    ):
        env = make(id)
        tasks: Sequence[int] = range(env.num_tasks or 200)
        if policy is listing:
            tasks = [index for index in tasks if env.task(index).metadata["outputs"]]
        yield f"4. {name}", f"{sum(play_as(env, policy, index).won for index in tasks)} of {len(tasks)}"


def file_rows() -> Iterator[tuple[str, str]]:
    from turntree.agents.evaluation.evaluate import Playing
    from turntree.agents.evaluation.file import EvalFile
    from turntree.agents.evaluation.run import EvalTask, open_file, plan
    from turntree.agents.evaluation.run import play as play_all

    renderer = make_renderer()
    with tempfile.TemporaryDirectory() as name:
        tasks, out = Path(name, "tasks.jsonl"), Path(name, "out.jsonl")

        def evaluated(gold: str) -> str:
            tasks.write_text(json.dumps({"question": "1 + 1?", "answer": f"#### {gold}"}) + "\n")
            task = EvalTask(env="turntree/GSM8K-v0", env_args={"data": str(tasks)}, count=1)
            engine = ScriptedEngine(lambda prompt: "#### 2", renderer.tokenizer)
            playing = Playing(model="scripted", seed=0)

            def play() -> str:
                file = open_file(plan(task), out, playing)
                run = play_all(plan(task), engine, renderer, playing, file=file)
                return f"solved {sum(one.reward for one in asyncio.run(run).episodes):g} of 1"

            return tried(play)

        yield "10. a file of right answers goes on", f"{evaluated('2')}; with another gold: {evaluated('3')}"
        EvalFile(out.with_name("other.jsonl"), {})
        second = tried(lambda: str(EvalFile(out.with_name("other.jsonl"), {}) and "both write"))
        yield "10. a second writer of a file", second
    yield "11. GSM8K-v0 by TURNTREE_DATA", tried(lambda: f"{make('turntree/GSM8K-v0', split='test').num_tasks} tasks")


def tried(do: Callable[[], str]) -> str:
    """What comes of it, or the error in a few words."""
    try:
        return do()
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:70]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds data")
    parser.add_argument("--before", type=Path, help="figures of an earlier run")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    args = parser.parse_args()
    about = provenance(["gymnasium"])
    print(about["machine"], about["command"], sep="\n")
    before = json.loads(args.before.read_text())["figures"] if args.before else {}
    os.environ["TURNTREE_DATA"] = str(args.data.resolve())
    warnings.simplefilter("ignore")
    figures: dict[str, str] = {}
    table = Table("hole", "before", "now")
    for rows in (service_rows, sandbox_rows, tool_rows, file_rows):
        for name, value in rows():
            figures[name] = value
            table.add_row(name, before.get(name, ""), value)
            print(name, value, sep=": ", file=sys.stderr)
    Console(width=200).print(table)
    if args.json:
        result = {**about, "figures": figures, **({"before": before} if before else {})}
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
