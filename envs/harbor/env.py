from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from turntree.envs.env import Env
from turntree.envs.errors import SnapshotError, UngradedAnswer
from turntree.envs.harbor.container import Container, built_image
from turntree.envs.harbor.tasks import HarborTask, read_tasks
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Reply, ToolCall
from turntree.envs.task import Task
from turntree.envs.tools.tool import tool
from turntree.envs.tools.toolset import Toolset

_REWARDS = "/logs/verifier"


class Terminal(Toolset):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.container: Container | None = None
        self.user: str | None = None

    @tool
    def shell(self, command: str) -> str:
        """Run a command with bash in the container; its files and the processes that it leaves running stay.

        Args:
            command: For example ls -la, or python -m pytest

        Returns:
            Its output, and its exit status where that is not 0.
        """
        assert self.container is not None, "reset() starts it"
        ran = self.container.run(command, self.seconds, user=self.user)
        if ran.code is None:
            return f"{ran.text}\n[ended after {self.seconds:g} s; run long commands in the background]".lstrip()
        return f"{ran.text}\n[exit status {ran.code}]".lstrip() if ran.code else ran.text

    def close(self) -> None:
        container, self.container = self.container, None
        if container is not None:
            container.close()

    def __getstate__(self) -> dict[str, Any]:
        if self.container is not None:
            raise SnapshotError("an episode in a container has no snapshots")
        return vars(self)


class Harbor(Env):
    """Play tasks in Harbor's format; the first turn without a tool call ends the episode.

    The task's ``tests/`` then run in the policy's container, or in a separate container that receives the task's
    artifacts. ``test.sh`` writes the reward to ``/logs/verifier/reward.txt`` or ``reward.json``. If the tests write no
    reward or do not end, or if Docker cannot start the container, the episode fails and is masked out of training.
    """

    static_attributes: ClassVar[frozenset[str]] = Env.static_attributes | {
        "tasks",
        "docker",
        "network",
        "num_tasks",
        "shown",
    }
    default_limits = Limits(max_turns=50)
    describes_tools = True

    def __init__(
        self,
        data: str | Path,
        *,
        skip: bool = False,
        docker: str = "docker",
        network: str | None = None,
        seconds: float = 120.0,
        shown: int = 5_000,
        **kwargs: Any,
    ) -> None:
        """Read the tasks.

        Args:
            data: A folder of task folders, or the folder of one task.
            skip: Leave out tasks that need unsupported features, such as several containers.
            docker: The command that runs containers; ``podman`` takes the same arguments.
            network: Docker network of all tasks, such as ``none``; ``None`` follows each task.
            seconds: Deadline of one command of the policy.
            shown: Bytes shown of the beginning of a command's output, and as many of its end.
            **kwargs: Arguments of ``Env``.

        Raises:
            DataError: If there is no task, or one is malformed or needs an unsupported feature.
        """
        super().__init__(**kwargs)
        self.tasks = read_tasks(data, skip=skip)
        self.docker, self.network, self.shown = docker, network, shown
        self.toolsets = (Terminal(seconds),)
        self.num_tasks = len(self.tasks)

    def default_system_prompt(self) -> str:
        call = self.parser.format_call(ToolCall(name="shell", arguments={"command": "ls"}))
        return (
            "You work in a Linux container. Call the shell like this and wait for the result:\n"
            f"{call}\nWhen the task is done, say so without calling a tool: then it is judged by tests."
        )

    def task(self, index: int) -> Task:
        read = self.tasks[index]
        return Task(
            id=f"harbor/{read.name}",
            prompt=read.instruction,
            data_source="harbor",
            metadata={**json.loads(json.dumps(read.metadata, default=str)), "index": index},
        )

    def solution(self) -> Sequence[str]:
        folder = self._task().folder / "solution"
        script = folder / "solve.sh"
        if not script.is_file() or len(list(folder.iterdir())) > 1:
            return ()
        call = ToolCall(name="shell", arguments={"command": script.read_text(encoding="utf-8")})
        return [self.parser.format_call(call), "Done."]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        opening = super().reset(seed=seed, options=options)
        task = self._task()
        terminal = self.toolset(Terminal)
        terminal.container = self._start(task, task.image or self._built(task, "environment"))
        terminal.user = task.user
        return opening

    def reply(self, message: Message) -> Reply:
        task, container = self._task(), self.toolset(Terminal).container
        assert container is not None, "reset() starts it"
        if not task.separate:
            return self._judge(task, container, bring_tests=True)
        bundled = task.test_image or ((task.folder / "tests" / "Dockerfile").is_file() and self._built(task, "tests"))
        own = self._start(task, bundled or task.image or self._built(task, "environment"))
        try:
            for path in task.artifacts:
                container.give(path, own)
            return self._judge(task, own, bring_tests=not bundled)
        finally:
            own.close()

    def _judge(self, task: HarborTask, container: Container, *, bring_tests: bool) -> Reply:
        container.run(f"rm -rf {_REWARDS}; mkdir -p {_REWARDS} && chmod 777 {_REWARDS}", 60.0, user="0")
        if bring_tests:
            container.put(task.folder / "tests", "/tests")
        script = "chmod +x /tests/test.sh 2> /dev/null; /tests/test.sh"
        ran = container.run(script, task.test_seconds, user=task.test_user, variables=task.test_variables)
        if ran.code is None:
            raise TimeoutError(f"the tests of {task.name} did not end within {task.test_seconds:g} s")
        rewards = _rewards(container.read(f"{_REWARDS}/reward.json"), container.read(f"{_REWARDS}/reward.txt"))
        if not rewards:
            raise UngradedAnswer(f"the tests of {task.name} left no reward in {_REWARDS}: {ran.text.strip()[-300:]}")
        if "reward" not in rewards and len(rewards) > 1:
            raise UngradedAnswer(f"none of the rewards of {task.name} is called 'reward': {', '.join(rewards)}")
        reward = rewards.get("reward", next(iter(rewards.values())))
        return Reply(reward=reward, done=True, rewards=rewards)

    def _start(self, task: HarborTask, image: str) -> Container:
        return Container(task, image, docker=self.docker, network=self.network, shown=self.shown)

    def _built(self, task: HarborTask, folder: str) -> str:
        return built_image(task.folder / folder, docker=self.docker, seconds=task.build_seconds)

    def _task(self) -> HarborTask:
        index: int = self.current_task.metadata["index"]
        return self.tasks[index]


def _rewards(as_json: str | None, as_text: str | None) -> dict[str, float]:
    try:
        written = json.loads(as_json) if as_json is not None else {"reward": (as_text or "").strip()}
        written = written if isinstance(written, dict) else {"reward": written}
        values = {str(name): float(value) for name, value in written.items()}
    except (TypeError, ValueError):
        return {}
    return values if all(map(math.isfinite, values.values())) else {}
