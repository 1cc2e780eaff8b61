from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from turntree.envs.env import Env
from turntree.envs.message import Message, Reply, Role, ToolCall
from turntree.envs.service.desk import Desk, desk_after
from turntree.envs.service.told import refused, told
from turntree.envs.task import Task


class SimulatedUser(Protocol):
    """The customer who opens the dialogue and answers the agent."""

    def open(self, task: Task) -> str:
        """Return the first message."""

    def answer(self, task: Task, dialogue: Sequence[Message]) -> str | None:
        """Answer the last message of ``dialogue``; ``None`` means that the customer leaves."""


class ScriptedUser:
    """A scripted customer: states the whole request at once, says yes to every question, and else leaves.

    The customer is deterministic, so an episode depends on the agent alone. Unlike a person or a model, this customer
    withholds nothing, never changes the request and does not correct the agent.
    """

    def open(self, task: Task) -> str:
        return f"I was told this about my request, and give it to you as it is:\n{task.prompt}"

    def answer(self, task: Task, dialogue: Sequence[Message]) -> str | None:
        if "?" not in dialogue[-1].content:
            return None
        return "Yes, please go ahead. I have nothing to add; for anything else, do as I wrote."


class Service(Env):
    """Base of customer service: an agent with tools serves a customer; the final database decides the reward.

    A turn without a call is a message to the customer. A task's ``metadata`` holds ``actions``, the task's own calls,
    and ``outputs``, the values that the agent must tell the customer. When the customer leaves, the reward is 1 if the
    database is the same as after ``actions`` and the agent has told all ``outputs``, else 0.

    If ``actions`` change nothing and ``outputs`` is empty, the request must be refused. The reward is then 1 if the
    agent looks up a record and refuses. If ``actions`` transfer the customer, the agent may do so instead, without a
    lookup if ``actions`` look up no record.
    """

    static_attributes: ClassVar[frozenset[str]] = Env.static_attributes | {"policy", "simulated_user"}

    def __init__(self, desk: Desk, *, policy: str, simulated_user: SimulatedUser | None, **kwargs: Any) -> None:
        """Set up the desk, the policy and the simulated user.

        Args:
            desk: A desk that every episode copies.
            policy: Text of the rules that the agent must follow.
            simulated_user: The customer that talks to the agent; ``None`` uses ``ScriptedUser``.
            **kwargs: Arguments of ``Env``.
        """
        super().__init__(**kwargs)
        self.toolsets = (desk,)
        self.policy = policy
        self.simulated_user = simulated_user or ScriptedUser()
        # A custom simulated user may block, for example while a model answers, and may keep state outside of snapshots.
        self.step_inline = type(self).step_inline and simulated_user is None
        self.forkable = type(self).forkable and simulated_user is None

    def default_system_prompt(self) -> str:
        return (
            f"{self.policy}\n\n"
            "What you write without a call is said to the customer. Ask where you need an answer; a message that "
            "asks nothing ends the conversation."
        )

    def solution(self) -> Sequence[str]:
        """Return calls of the task's own actions, and a message with the values to tell; empty without actions."""
        facts = self.current_task.metadata
        calls = [ToolCall(name=action["name"], arguments=action["kwargs"]) for action in facts["actions"]]
        told = ", ".join(facts["outputs"]) or "I am sorry, nothing more is possible"
        return [*map(self.parser.format_call, calls), f"Done: {told}."] if calls else ()

    def start(self, task: Task) -> Sequence[Message]:
        return [Message(role=Role.USER, content=self.simulated_user.open(task))]

    def reply(self, message: Message) -> Reply:
        desk = self.toolset(Desk)
        answer = None if desk.transferred else self.simulated_user.answer(self.current_task, self.messages)
        if answer is not None:
            return Reply(messages=[Message(role=Role.USER, content=answer)])
        task = self.current_task
        # Any calls that lead to the right final database are right, so run the task's own actions on a fresh desk and
        # compare the databases.
        own = desk_after(desk, task.metadata["actions"])
        expected = own.database.changes()
        rewards = {
            "database": float(desk.database.changes() == expected),
            "told": float(told(task.metadata["outputs"], self.messages)),
        }
        if not expected and not task.metadata["outputs"]:  # the request must not be fulfilled
            # A transfer is right if the task's own actions transfer the customer. If these actions look up a record,
            # the agent must have looked up a record, too.
            transferred = own.transferred and desk.transferred and (desk.looked or not own.looked)
            rewards["told"] = float(transferred or (desk.looked and refused(self.messages)))
        return Reply(reward=rewards["database"] * rewards["told"], done=True, rewards=rewards)
