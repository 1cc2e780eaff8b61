from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from turntree.envs.env import Env
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Reply, ToolCall
from turntree.envs.repair.check import share_right
from turntree.envs.repair.programs import find_program, programs
from turntree.envs.repair.workspace import Workspace
from turntree.envs.sandbox.settings import Isolation
from turntree.envs.task import Task


class Repair(Env):
    """Make a program do what its README says; the first turn without a tool call ends the episode.

    The reward is 1 if all hidden calls give the same results as in the right program; ``share`` says how many do. They
    run in a separate sandbox.
    """

    forkable = True
    static_attributes: ClassVar[frozenset[str]] = Env.static_attributes | {"_places", "num_tasks", "split"}
    default_limits = Limits(max_turns=16)
    example_call = ToolCall(name="shell", arguments={"command": "python -m unittest"})

    def __init__(
        self, *, split: str = "train", seconds: float = 10.0, isolation: Isolation | str = Isolation.AUTO, **kwargs: Any
    ) -> None:
        """List the tasks.

        Args:
            split: ``train`` or ``test``; the splits have different programs.
            seconds: Deadline of one command, and of the program in the hidden check.
            isolation: How the policy's commands and program are isolated, see ``PythonSandbox``.
            **kwargs: Arguments of ``Env``.

        Raises:
            ValueError: If the split does not exist.
        """
        super().__init__(**kwargs)
        self.split = split
        self.toolsets = (Workspace(seconds=seconds, isolation=isolation),)
        faults = [(fault, program.name) for program in programs(split) for fault in range(len(program.faults))]
        self._places = sorted(faults, key=lambda place: place[0])
        self.num_tasks = len(self._places)

    def default_system_prompt(self) -> str:
        return (
            "You repair a small Python program. One line of it is wrong. Look at the files, run the tests, find the "
            "line and change it.\n"
            "The program is then judged by calls of its functions that you do not see: it must do what README.md says. "
            "Changes of the tests count for nothing. When the program is right, say so without calling a tool."
        )

    def task(self, index: int) -> Task:
        # Neighbouring indices have different programs.
        fault, name = self._places[index]
        files = ", ".join(sorted(find_program(name).files(fault)))
        return Task(
            id=f"repair/{self.split}/{name}/{fault}",
            prompt=f"The program {name!r} does not do what its README.md says. Repair it.\nFiles: {files}",
            data_source="repair",
            metadata={"program": name, "fault": fault},
        )

    def solution(self) -> Sequence[str]:
        facts = self.current_task.metadata
        fault = find_program(facts["program"]).faults[facts["fault"]]
        edit = ToolCall(name="edit", arguments={"path": fault.path, "old": fault.wrong, "new": fault.right})
        return [self.parser.format_call(edit), "Done."]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        opening = super().reset(seed=seed, options=options)
        facts = self.current_task.metadata
        self.toolset(Workspace).files = find_program(facts["program"]).files(facts["fault"])
        return opening

    def reply(self, message: Message) -> Reply:
        workspace = self.toolset(Workspace)
        share = share_right(self.current_task.metadata["program"], workspace.files, workspace.make_runner)
        right = float(share == 1.0)
        return Reply(reward=right, done=True, rewards={"correct": right, "share": share})
