from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from turntree.envs.env import Env
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Reply, ToolCall
from turntree.envs.repair import calls
from turntree.envs.repair.programs import expected, find_program, programs
from turntree.envs.repair.shell import WRITE_FILES
from turntree.envs.repair.workspace import Workspace
from turntree.envs.running.memo import ResultMemo
from turntree.envs.sandbox.python_sandbox import PythonSandbox
from turntree.envs.sandbox.settings import Isolation
from turntree.envs.task import Task

_JUDGED = ResultMemo(4096)  # digest of program and files -> fraction of right calls
_OUTCOMES = Path(calls.__file__).read_text("utf-8")
_CALL = """
import importlib
dumps, write = json.dumps, os.write
os.chdir(work)
sys.path.insert(0, work)
found = outcomes(given["calls"], importlib.import_module(given["module"]), dumps=dumps)
write(1, ("\\n" + given["nonce"] + dumps(found) + "\\n").encode())
"""


def share_right(name: str, files: Mapping[str, str], make_runner: Callable[[], PythonSandbox]) -> float:
    """Return the fraction of a program's hidden calls with the right result; 0 if the program has to be stopped.

    Args:
        files: The policy's workspace, text by path.
        make_runner: Creates a new sandbox, in which the policy has run nothing.

    Raises:
        SandboxError: If the sandbox failed.
    """
    judged = hashlib.sha256(json.dumps([name, dict(files)], sort_keys=True).encode()).hexdigest()
    known = _JUDGED.get(judged)
    if known is not None:
        return float(known)
    found, wanted = _found(name, files, make_runner), expected(name)
    if found is None or len(found) != len(wanted):
        return 0.0
    share = sum(one == other for one, other in zip(found, wanted, strict=True)) / len(wanted)
    _JUDGED.put(judged, str(share))
    return share


def _found(name: str, files: Mapping[str, str], make_runner: Callable[[], PythonSandbox]) -> list[object] | None:
    nonce = secrets.token_hex(16)
    given = {"module": name, "calls": find_program(name).calls, "files": dict(files), "nonce": nonce}
    with make_runner() as runner:
        result = runner.run(_OUTCOMES + WRITE_FILES.format(given=json.dumps(given)) + _CALL)
    lines = [line for line in result.stdout.splitlines() if line.startswith(nonce)]
    if not result.ok or len(lines) != 1:
        return None
    try:
        found = json.loads(lines[0].removeprefix(nonce))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


class Repair(Env):
    """Make a program do what its README says; the first turn without a tool call ends the episode.

    Hidden calls of the program's functions run in a separate sandbox. The reward is 1 if all their results are equal to
    those of the right program. The component ``share`` is the fraction of equal results.
    """

    forkable = True
    static_attributes: ClassVar[frozenset[str]] = Env.static_attributes | {"_positions", "num_tasks", "split"}
    default_limits = Limits(max_turns=16)
    example_call = ToolCall(name="shell", arguments={"command": "python -m unittest"})

    def __init__(
        self, *, split: str = "train", seconds: float = 10.0, isolation: Isolation | str = Isolation.AUTO, **kwargs: Any
    ) -> None:
        """List the tasks.

        Args:
            split: ``train`` or ``test``, which have different programs.
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
        self._positions = sorted(faults, key=lambda position: position[0])
        self.num_tasks = len(self._positions)

    def default_system_prompt(self) -> str:
        return (
            "You repair a small Python program. One line of it is wrong. Look at the files, run the tests, find the "
            "line and change it.\n"
            "The program is then judged by calls of its functions that you do not see: it must do what README.md says. "
            "Changes of the tests count for nothing. When the program is right, say so without calling a tool."
        )

    def task(self, index: int) -> Task:
        # The positions are ordered so that consecutive indices have different programs.
        fault, name = self._positions[index]
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
