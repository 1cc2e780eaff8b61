"""Let a user ask for several things, one per turn; the policy does them with tools over simulated APIs.

A turn is right if all APIs end in the same state as after the task's own calls, and if the policy has received every
result of the task's own calls. The text that the policy writes is not graded.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from turntree.envs.bfcl.apis import all_api_tools, tools_of, written
from turntree.envs.bfcl.tasks import find_files, read_tasks
from turntree.envs.bfcl.world import World, beginning_of
from turntree.envs.env import Env
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Reply, Role, ToolCall
from turntree.envs.parsers import ToolParser, get_parser
from turntree.envs.running.executor import ToolExecutor
from turntree.envs.task import Task
from turntree.envs.tools.tool import Tool
from turntree.envs.tools.tool_run import answer, prepare
from turntree.envs.tools.toolset import all_tools


class Expected(NamedTuple):  # the effects of the task's own calls in one turn
    results: list[str]  #: results of the calls, in order
    states: Mapping[str, Any]  #: of each API after this turn, by name


def expected(task: Task, beginning: bytes, executor: ToolExecutor) -> list[Expected]:
    """Play a task's own calls on separate APIs and return the expected results and states of each turn.

    ``executor`` must have the settings of the policy's executor, so that long results are truncated in the same way.
    """
    world = World()
    world.begin(beginning)
    owners = dict.fromkeys((tool.name for tool in world.tools), world)
    tools = tools_of(tuple(task.metadata["apis"]), frozenset())
    turns: list[Expected] = []
    states: dict[str, Any] = {}
    for calls in task.metadata["path"]:
        asked = [ToolCall(name=call["name"], arguments=call["arguments"]) for call in calls]
        outcomes = executor.run([prepare(call, tools, owners=owners) for call in asked])
        results = [answer(call, outcome).content for call, outcome in zip(asked, outcomes, strict=True)]
        changed = {name: state for name, state in world.states().items() if state != states.get(name)}
        states = {**states, **pickle.loads(pickle.dumps(changed))}
        turns.append(Expected(results, states))
    return turns


def results_in(dialogue: Sequence[Message]) -> list[str]:
    return [message.content for message in dialogue if message.role is Role.TOOL and message.name]


def contains(got: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether ``got`` contains every wanted result, at least as often as ``wanted`` does.

    >>> contains(["a", "b"], ["b", "a"]), contains(["b"], ["b", "b"])
    (True, False)
    """
    left = list(got)
    for result in wanted:
        if result not in left:
            return False
        left.remove(result)
    return True


SPLITS = ("base", "miss_func", "miss_param", "long_context")
Offer = tuple[tuple[str, ...], frozenset[str]]  #: the APIs of a task, and the names of the tools that it withholds


class Known(NamedTuple):  # computed once per task and kept for the next episode of this task
    task: Task
    beginning: bytes  #: pickle of the APIs in their first state
    turns: list[Expected]
    tools_json: list[str]  #: schemas of the offered tools, one entry per turn and one for after the last turn


class BFCL(Env):
    """Do what a user asks for, turn after turn, with tools over files, posts, tickets, money, flights or a car.

    The reward is 1 if every turn is right. In some turns the task itself makes no call, because a tool or an argument
    is missing and the policy should ask. After such a turn the state is not compared; a wrong change shows in a later
    turn's comparison. The last turn is always compared. Withheld tools are offered from the turn that the data name.
    """

    step_inline = True  # fast enough to run in the event loop, see Env.step_inline
    forkable = True
    static_attributes: ClassVar[frozenset[str]] = Env.static_attributes | {
        *("_tasks", "num_tasks", "_written", "_known")
    }
    default_limits = Limits(max_turns=64)

    def __init__(self, *, data: str | Path | None = None, split: str = "base", **kwargs: Any) -> None:
        """Read the tasks.

        Args:
            data: Folder with ``multi_turn_SPLIT.jsonl``, whose field ``ground_truth`` has each task's calls, or a
                folder like the package's ``data`` folder. ``None`` takes the installed package's ``data`` folder.
            split: ``base``, ``miss_func``, ``miss_param`` or ``long_context``.
            **kwargs: Arguments of ``Env``.

        Raises:
            DataError: If a file is missing or malformed; the message names file and line.
            MissingExtra: If the package ``bfcl-eval`` is not installed.
        """
        super().__init__(**kwargs)
        self.toolsets = (World(),)
        self._tasks = read_tasks(find_files(data, split), split)
        self.num_tasks = len(self._tasks)
        self._written: dict[Offer, str] = {}
        self._known: Known | None = None
        self._begin()

    def task(self, index: int) -> Task:
        return self._tasks[index]

    def default_system_prompt(self) -> str:
        return (
            "A user asks you for several things, one after the other. Do each with your tools, and no more than is "
            "asked for.\n"
            "What you write without a call is said to the user and ends your turn: write it when everything is done, "
            "or when a tool or something that you must know is missing. The user then goes on."
        )

    def solution(self) -> Sequence[str]:
        turns: list[str] = []
        for path in self.current_task.metadata["path"]:
            calls = [ToolCall(name=call["name"], arguments=call["arguments"]) for call in path]
            turns += [*map(self.parser.format_call, calls), "Done."]
        return turns

    @cached_property
    def parser(self) -> ToolParser:
        return get_parser(self.call_format, all_tools(self.tools, self.toolsets))

    @property
    def offered_tools(self) -> tuple[Tool, ...]:  # type: ignore[override]  # they differ by task and turn
        if self._progress is None:
            return all_tools(self.tools, self.toolsets)
        return tools_of(*self._offer(self._turn))

    @property
    def _tools_json(self) -> str:  # type: ignore[override]
        return self._known_of_task().tools_json[self._turn]

    def _offer(self, turn: int) -> Offer:
        facts = self.current_task.metadata
        later = [name for name, begins in facts["later"].items() if begins > turn]
        return tuple(facts["apis"]), frozenset(later)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._begin()
        opening = super().reset(seed=seed, options=options)
        self.toolset(World).begin(self._known_of_task().beginning)
        return opening

    def reply(self, message: Message) -> Reply:
        self._judge()
        facts = self.current_task.metadata
        questions = facts["questions"]
        self._turn += 1
        if self._turn == len(questions):
            rewards = {"state": float(self._state_right), "calls": float(self._calls_right)}
            return Reply(reward=rewards["state"] * rewards["calls"], done=True, rewards=rewards)
        question = questions[self._turn]
        new = [all_api_tools()[name] for name, turn in facts["later"].items() if turn == self._turn]
        if new:
            revealed = f"From now on you can call these tools too:\n{written(new)}"
            question = f"{revealed}\n{question or 'Please do now what could not be done without them.'}"
        return Reply(messages=[Message(role=Role.USER, content=question)])

    def _begin(self) -> None:
        self._turn = 0
        self._results = 0
        self._state_right = self._calls_right = True

    def _judge(self) -> None:  # compares the turn that ends now with the task's own calls
        turns = self._known_of_task().turns
        wanted, states = turns[self._turn]
        if self._state_right and (wanted or self._turn == len(turns) - 1):
            self._state_right = self.toolset(World).states() == states
        if self._calls_right:
            got = results_in(self.messages)
            self._calls_right = not wanted or (len(got) > self._results and contains(got, wanted))
            self._results = len(got)

    def _known_of_task(self) -> Known:
        task = self.current_task
        if self._known is None or self._known.task != task:
            beginning = beginning_of(task)
            texts = [self._text_of(self._offer(turn)) for turn in range(len(task.metadata["questions"]) + 1)]
            self._known = Known(task, beginning, expected(task, beginning, self.executor), texts)
        return self._known

    def _text_of(self, offer: Offer) -> str:
        if offer not in self._written:
            self._written[offer] = written(tools_of(*offer))
        return self._written[offer]
