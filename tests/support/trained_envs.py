"""Environments and rewards of real trainings; verl's processes import this file from where pytest found it."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import ray
from machine_speed import eventually

from turntree.agents.engines.protocol import Completion, TurnRequest
from turntree.agents.resuming.interrupted_turns import RetryingEngine
from turntree.envs import Env, Message, Reply, Task, Tool
from turntree.envs.math.arithmetic import Arithmetic
from turntree.envs.math.calculator import one_operation_calculator
from turntree.envs.sandbox import PythonSandbox
from turntree.rewards import Sample, default_grader, reward, score_batch


class Talking(Env):
    """Ask again until a number of turns is reached; pay for a short last turn."""

    step_inline = True  # in threads siblings come to the ledger in an order that no seed decides

    def __init__(self, *, turns: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.turns = turns

    def task(self, index: int) -> Task:
        return Task(id=f"talking/{index}", prompt=f"say {index}")

    def start(self, task: Task) -> Sequence[Message]:
        self.heard = 0
        return super().start(task)

    def reply(self, message: Message) -> Reply:
        self.heard += 1
        if self.heard < self.turns:
            return Reply(messages=(Message(role="user", content=self.between(message)),))
        return Reply(reward=1.0 / (1 + len(message.content)), done=True)

    def between(self, message: Message) -> str:
        return f"you said {len(message.content) % 3}"


class Forking(Talking):
    """Its episodes can return to an earlier turn."""

    step_inline = True
    forkable = True


class KilledWhileReverifying(Forking):
    """Kill the engine's ``server`` once while it re-verifies a turn that a weight update interrupted.

    Creates the file ``reverifying`` in ``folder``. The process stops just before the turn arrives, until it is killed.
    """

    step_inline = True
    forkable = True

    def __init__(self, *, folder: str, server: str = "TurntreeServer", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        _kill_at_reverified_turn(Path(folder) / "reverifying", server)


@cache
def _kill_at_reverified_turn(note: Path, server: str) -> None:
    generate = RetryingEngine.generate

    async def killed(self: RetryingEngine, request: TurnRequest) -> Completion:
        if not request.draft or not is_first(note):
            return await generate(self, request)
        victims = actors(server)[-1:]
        kill(victims, signal.SIGSTOP)
        turn = asyncio.create_task(generate(self, request))
        await asyncio.sleep(0.5)  # the request is on its way, and other turns are being sampled or re-verified
        kill(victims)
        return await turn

    RetryingEngine.generate = killed  # type: ignore[method-assign]


class Repeating(Talking):
    """Few prompts, and the same reply after each turn: turns of many tasks share one state."""

    def task(self, index: int) -> Task:
        return Task(id=f"repeating/{index}", prompt=f"say {index % 2}")

    def between(self, message: Message) -> str:
        return "again"


_KINDS = itertools.cycle((OSError, SystemExit, asyncio.CancelledError, None))
BREAKS = {
    "OSError: the disk is full",
    "SystemExit: the disk is full",
    "CancelledError: the disk is full",
    "SystemExit: os._exit(28)",
}


class Echoing(Talking):
    """State the gold answer in every form that pays; two tasks have a known data set, task ``broken`` breaks."""

    def __init__(self, *, broken: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.broken = broken

    def task(self, index: int) -> Task:
        return Task(id=f"echo/{index}", prompt=f"say {index}", answer="42", data_source="math" if index < 2 else "echo")

    def between(self, message: Message) -> str:
        if self.current_task.id == f"echo/{self.broken}":
            if (kind := next(_KINDS)) is None:
                os._exit(28)
            raise kind("the disk is full")
        return "The answer is 42. \\boxed{42}\n#### 42"


@reward("brevity", decides=True)
def brevity(sample: Sample) -> float | None:
    """Pay for short answers; task 1 cannot be graded."""
    return None if sample.task_id == "echo/1" else 1.0 / (1 + len(sample.answer_text))


@reward("first", group=True)
def first(samples: Sequence[Sample]) -> list[float]:
    return [1.0] + [0.0] * (len(samples) - 1)


class Slow(Arithmetic):
    """Its calculator takes a while and logs each call to the file ``asked``."""

    def __init__(self, *, asked: str, pure: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)

        def calculator(expression: str) -> str:
            """Do one operation on two whole numbers.

            Args:
                expression: Such as 3*4.
            """
            with open(asked, "a") as file:
                file.write(f"{expression!r}\n")
            time.sleep(0.05)
            return str(one_operation_calculator(expression))

        self.tools = (Tool(calculator, pure=pure),)


class Deadly(Talking):
    """Kill processes, each once, when the first answer to its task in ``victims`` arrives.

    Each kill leaves a file with its time in ``folder``. Task ``whole`` waits until ``replicas`` replicas run again.
    Tasks ``lost`` break; the first prompt of task ``long`` is longer than a row.
    """

    def __init__(
        self,
        *,
        folder: str,
        victims: Mapping[str, int],
        replicas: int = 1,
        whole: int = -1,
        prompts: int = 4,
        lost: Sequence[int] = (),
        long: int = -1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.prompts, self.lost, self.long = prompts, lost, long
        self.folder, self.victims, self.replicas, self.whole = folder, victims, replicas, whole
        if "server" in victims:
            _note_servers()

    def task(self, index: int) -> Task:
        said = "say " * (5000 if index == self.long else 1)
        return Task(id=f"deadly/{index}", prompt=f"{said}{index % self.prompts}", answer="x+1", data_source="math")

    def between(self, message: Message) -> str:
        if int(self.current_task.id.partition("/")[2]) in self.lost:
            raise OSError("the disk is full")
        for victim, index in self.victims.items():
            if self.current_task.id == f"deadly/{index}" and is_first(Path(self.folder) / victim):
                getattr(self, f"kill_{victim}")()
        if self.current_task.id == f"deadly/{self.whole}":  # an actor has this title once it has been made
            eventually(lambda: len(actors("TurntreeServer")) == self.replicas, 120)
        return "again"

    def kill_tool(self) -> None:
        before = set(processes(os.getpid()))
        with PythonSandbox(session=True) as sandbox:
            sandbox.run("x = 1")
            kill(set(processes(os.getpid())) - before)
            sandbox.run("x")

    def kill_reward(self) -> None:
        grader = default_grader()
        assert score_batch(["the answer is $(x+2)^2$"], ["x^2+4x+4"], "math")[0].correct
        kill([*grader.worker_pids(), grader.server_pid()])

    def kill_replica(self) -> None:
        kill(actors("TurntreeServer")[-1:])

    def kill_replica_and_broker(self) -> None:
        kill(actors("TurnBroker"))
        self.kill_replica()

    def kill_server(self) -> None:
        # vLLM's server that answered, which will also get the next turn; its engine ends with it.
        server = ray.get(_SERVER.get().__ray_call__.remote(lambda _: os.getpid()))
        engines = list(processes(server, "VLLM::EngineCore"))
        kill([server])
        assert engines
        eventually(lambda: not any(map(is_alive, engines)), 60)

    def kill_engine(self) -> None:
        # vLLM's engine process and its scheduler.
        (server,) = actors("DraftingVllmServer")
        kill(processes(server, "VLLM::EngineCore"))

    def kill_trainer(self) -> None:
        kill(actors("TaskRunner"))

    def kill_player(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


_SERVER: ContextVar[Any] = ContextVar("server")  #: handle of the server of the dialogue's last turn


@cache
def _note_servers() -> None:
    from turntree.agents.verl.serving.turns import TurnPipe

    generate = TurnPipe.generate

    async def noted(self: Any, request: Any) -> Any:
        _SERVER.set(self._server)
        return await generate(self, request)

    TurnPipe.generate = noted  # type: ignore[method-assign]


def is_first(path: Path) -> bool:
    # Exclusive creation, so that only one process wins.
    try:
        note = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    os.write(note, str(time.time()).encode())
    os.close(note)
    return True


def processes(parent: int, name: str = "") -> Iterable[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
            state = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(state[1]) == parent and state[0] != "Z" and name in command:
            yield int(folder.name)


def actors(name: str) -> list[int]:
    # Ray's actors of this session are children of one raylet.
    return sorted(processes(os.getppid(), "ray::" + name))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(pids: Iterable[int], how: signal.Signals = signal.SIGKILL) -> None:
    pids = list(pids)
    assert pids, "there is nobody to kill"
    for pid in pids:
        os.kill(pid, how)
