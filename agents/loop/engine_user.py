"""A customer whose words a language model samples, for the environments of customer service.

Invariant: the words depend on the seed, the task and the dialogue, if the model's engine keeps to its seeds; and they
are messages of the user like any other, so that no policy is trained on them. What the engine raises, and a customer
who says nothing, is a failure of the episode and no verdict.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace

from turntree.agents.engines.event_thread import EventThread
from turntree.agents.engines.protocol import Sampling, derive_seed
from turntree.agents.errors import AgentError
from turntree.agents.loop.participants import Participant
from turntree.envs import Message, Role, Task
from turntree.rewards.reading.thoughts import without_thoughts

LEAVE = "###STOP###"
"""What a customer writes to leave, as in tau-bench (arXiv 2406.12045)."""
_GREETING = "Hi! How can I help you today?"
_INSTRUCTIONS = f"""You play a customer who writes to a company's service. Your part:
{{part}}

Write one short message at a time, in your part's own words, and say only what is needed now; make nothing up that \
your part does not say. When all that you want is done or refused, or you are handed over to a person, write {LEAVE} \
alone."""


class SimulatedUserSilent(AgentError):
    """The model that plays the customer gave no words."""


class EngineSimulatedUser:
    """A ``SimulatedUser`` who is played by a language model.

    Args:
        thread: Where it speaks; the caller closes it.
        sampling: How a message is sampled; the seed is made for each.
        seconds: Deadline of a message.
    """

    def __init__(
        self,
        participant: Participant,
        thread: EventThread,
        *,
        sampling: Sampling = Sampling(temperature=0.7, max_tokens=256),  # noqa: B008 - frozen
        seed: int = 0,
        seconds: float = 120.0,
    ) -> None:
        if not seconds > 0:
            raise ValueError(f"a customer needs some seconds, got {seconds}")
        self.participant, self.thread = participant, thread
        self.sampling, self.seed, self.seconds = sampling, seed, seconds

    def open(self, task: Task) -> str:
        """The first message; blocks. One that leaves at once is a failure.

        Raises:
            SimulatedUserSilent: If the model says nothing.
            ParticipantSilent: If its engine gave the turn up.
            TimeoutError: If it takes too long.
        """
        reply = self._say(task, ())
        if reply is None:
            raise SimulatedUserSilent(f"the customer of {task.id} left before saying anything")
        return reply

    def answer(self, task: Task, dialogue: Sequence[Message]) -> str | None:
        """The answer to the agent's last message, ``None`` to leave; blocks, and raises as ``open``."""
        return self._say(task, dialogue)

    def _say(self, task: Task, dialogue: Sequence[Message]) -> str | None:
        part = {"role": "system", "content": _INSTRUCTIONS.format(part=task.prompt)}
        messages = [part, {"role": "user", "content": _GREETING}, *as_heard(dialogue)]
        digest = hashlib.blake2b(task.id.encode(), digest_size=8).digest()
        seed = derive_seed(self.seed, int.from_bytes(digest), len(messages))
        speaking = self.participant.say(messages, replace(self.sampling, seed=seed))
        reply = without_thoughts(self.thread.call(asyncio.wait_for(speaking, self.seconds)).text)[0].strip()
        if LEAVE in reply:
            return None
        if not reply:
            raise SimulatedUserSilent(f"the customer of {task.id} said nothing")
        return reply


def as_heard(dialogue: Sequence[Message]) -> list[dict[str, str]]:
    """A dialogue as the customer knows it: without tools, the customer's own messages being the assistant's.

    Args:
        dialogue: Messages of an environment. A turn that tools answer is not shown to the customer.
    """
    heard = []
    for number, message in enumerate(dialogue, start=1):
        answered = number < len(dialogue) and dialogue[number].role is Role.TOOL
        if message.role is Role.USER:
            heard.append({"role": "assistant", "content": message.content})
        elif message.role is Role.ASSISTANT and not answered:
            heard.append({"role": "user", "content": message.spoken})
    return heard
