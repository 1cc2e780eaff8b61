from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turntree.envs.bridges.libraries import library
from turntree.envs.bridges.verifiers_trace import VerifiersTools, content_text, played_messages, trace_of
from turntree.envs.env import Env
from turntree.envs.errors import DataError
from turntree.envs.message import Message, Reply, Role
from turntree.envs.running.worker_pool import WorkerPool
from turntree.envs.task import Task

_SCORERS = WorkerPool()


class Verifiers(Env):
    """Plays a task of a verifiers ``Taskset`` per episode; the first turn that calls no tool is the answer.

    The reward is the weighted sum of the task's own rewards; ``rewards`` has each reward and each metric. The task's
    tool servers run in this process, one set per episode, and share the trace's state, as in verifiers.

    Refused with a ``DataError``: tasks that need a container or a runtime, and tasks whose hooks stop or change
    dialogues.
    """

    static_attributes = Env.static_attributes | {"_rows", "_score", "_seconds", "num_tasks", "_name"}

    def __init__(
        self,
        taskset: Any,
        *,
        score: Callable[[Any, str], Any] | None = None,
        name: str = "verifiers",
        max_tasks: int = 10_000,
        seconds: float = 300.0,
        **kwargs: Any,
    ) -> None:
        """Read the tasks.

        Args:
            taskset: Iterable of tasks with ``data`` (a prompt, text or messages).
            score: Function or coroutine function of the task and the answer that returns the reward; ``None`` lets the
                task score the whole dialogue.
            name: Prefix of task ids.
            max_tasks: Maximum number of tasks to read; task sets may be endless.
            seconds: Deadline for scoring an episode, and for each tool call.
            **kwargs: Arguments of ``Env``.

        Raises:
            DataError: If a task needs something that this bridge does not support.
        """
        super().__init__(**kwargs)
        self._rows = list(itertools.islice(taskset, max_tasks))
        self._score, self._name, self._seconds = score, name, seconds
        self.num_tasks = len(self._rows)
        self._serving: VerifiersTools | None = None
        self._state: Any = None
        if self._rows:
            # Only the first task is checked, as a sample of the whole task set.
            _require_playable(self._rows[0], own_score=score is None)
            served = VerifiersTools.of(self._rows[0], seconds)
            self.tools = (*self.tools, *(served.offered if served else ()))

    def task(self, index: int) -> Task:
        text = "\n\n".join(message.content for message in _opening(self._rows[index]) if message.role is Role.USER)
        return Task(id=f"{self._name}/{index}", prompt=text, data_source=self._name, metadata={"index": index})

    def start(self, task: Task) -> Sequence[Message]:
        """Return the prompt as messages; the task's system prompt is left out if the caller gave one."""
        row = self._rows[task.metadata["index"]]
        if self._score is None:
            self._state = trace_of(row, []).state
        if self._serving is not None:
            self._serving.close()
        self._serving = VerifiersTools.of(row, self._seconds)
        if self._serving is not None:
            self._serving.begin(row, self._state)
        opening = _opening(row)
        return opening if self._system_prompt is None else [m for m in opening if m.role is not Role.SYSTEM]

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool of the task.

        Raises:
            ToolError: If the tool rejects the call.
        """
        assert self._serving is not None
        return self._serving.call(name, arguments)

    def reply(self, message: Message) -> Reply:
        row = self._rows[self.current_task.metadata["index"]]
        if self._score is not None:
            reward = float(self._awaited(self._score(row, message.content)))
            return Reply(reward=reward, done=True, rewards={"verifiers": reward})
        trace = trace_of(row, played_messages(self.messages, self.parser), self._state)
        self._awaited(row.score(trace))
        rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return Reply(reward=float(trace.reward), done=True, rewards=metrics | rewards)

    def close(self) -> None:
        if self._serving is not None:
            self._serving.close()
        super().close()

    def _awaited(self, score: Any) -> Any:
        # A coroutine runs in another thread, because this thread may have a running event loop.
        if not inspect.isawaitable(score):
            return score

        async def wait() -> Any:
            return await asyncio.wait_for(score, self._seconds)

        return _SCORERS.submit(asyncio.run, wait()).result()


def named_taskset(name: str, *, config: Mapping[str, Any] | None = None, **kwargs: Any) -> Verifiers:
    """Load an installed task set, named ``verifiers:NAME``.

    Args:
        name: Id of the task set, for example ``reverse-text``.
        config: Fields of the task set's ``TasksetConfig``.
        **kwargs: Arguments of ``Verifiers``.

    Raises:
        DataError: If the task set is not installed, or its ``TasksetConfig`` lacks a field that ``config`` sets.
        MissingExtra: If verifiers is not installed.
    """
    v1 = library("verifiers.v1", "verifiers")
    try:
        taskset = v1.load_taskset(v1.taskset_config_type(name)(id=name, **(config or {})))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise DataError(f"verifiers:{name} cannot be loaded: {' '.join(str(error).split()):.400}") from error
    return Verifiers(taskset, **{"name": name, **kwargs})


def _opening(row: Any) -> list[Message]:
    system, prompt = getattr(row.data, "system_prompt", None), row.data.prompt
    messages = [] if system is None else [Message(role=Role.SYSTEM, content=system)]
    if isinstance(prompt, str):
        return [*messages, Message(role=Role.USER, content=prompt)]
    return [
        *messages,
        *(Message(role=Role(_part(m, "role")), content=content_text(_part(m, "content"))) for m in prompt),
    ]


def _part(message: Any, name: str) -> Any:
    return message[name] if isinstance(message, dict) else getattr(message, name)


def _require_playable(row: Any, *, own_score: bool) -> None:
    if not own_score:
        return
    base = library("verifiers.v1", "verifiers").Task
    if not isinstance(row, base):
        raise DataError(f"expected tasks of verifiers.v1, got {type(row).__name__}; pass score= to grade other tasks")
    hooks = [row.setup, row.finalize, *row.hooks("metric"), *row.hooks("reward")]
    inherited = (base.setup, base.finalize)
    needy = [
        hook.__name__
        for hook in hooks
        if (given := inspect.signature(hook).parameters.get("runtime")) is not None
        and given.default is inspect.Parameter.empty
        and getattr(hook, "__func__", None) not in inherited
    ]
    reasons = [f"{name} needs a runtime" for name in needy]
    reasons += [f"{hook.__name__} stops dialogues" for hook in row.hooks("stop")]
    reasons += ["it needs a container"] if row.NEEDS_CONTAINER else []
    reasons += ["the user opens the dialogue"] if row.data.prompt is None else []
    if reasons:
        raise DataError(f"this bridge does not support {type(row).__name__}: {'; '.join(reasons)}; run it in verifiers")
