"""A simulated user played by a language model, for customer-service environments.

Invariant: messages depend only on the seed, the task and the dialogue, if the engine honours seeds. The messages are
ordinary user messages, so no policy is trained on their tokens. If the engine fails or returns no text, the episode
fails instead of being scored 0.
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

#: the simulated user writes this text to end the dialogue, as in tau-bench (arXiv 2406.12045)
LEAVE = "###STOP###"
_GREETING = "Hi! How can I help you today?"
_INSTRUCTIONS = f"""You play a customer who writes to a company's service. Your part:
{{part}}

Write one short message at a time, in your part's own words, and say only what is needed now; make nothing up that \
your part does not say. When all that you want is done or refused, or you are handed over to a person, write {LEAVE} \
alone."""


class SimulatedUserSilent(AgentError):
    """The model that plays the user returned no text."""


class EngineSimulatedUser:
    """A ``SimulatedUser`` played by a language model.

    Args:
        thread: Thread in which the participant runs; the caller closes the thread.
        seconds: Time limit per message.
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
            raise ValueError(f"seconds must be above 0, got {seconds}")
        self.participant, self.thread = participant, thread
        self.sampling, self.seed, self.seconds = sampling, seed, seconds

    def open(self, task: Task) -> str:
        """Return the first message. This call blocks.

        Raises:
            SimulatedUserSilent: If the model returns no text, or ends the dialogue at once.
        """
        reply = self._message(task, ())
        if reply is None:
            raise SimulatedUserSilent(f"the simulated user of {task.id} left without a message")
        return reply

    def answer(self, task: Task, dialogue: Sequence[Message]) -> str | None:
        """Return the answer to the agent's last message, or ``None`` to end the dialogue; otherwise like ``open``."""
        return self._message(task, dialogue)

    def _message(self, task: Task, dialogue: Sequence[Message]) -> str | None:
        part = {"role": "system", "content": _INSTRUCTIONS.format(part=task.prompt)}
        messages = [part, {"role": "user", "content": _GREETING}, *users_view(dialogue)]
        # Use a stable digest, because ``hash`` differs between processes.
        digest = hashlib.blake2b(task.id.encode(), digest_size=8).digest()
        seed = derive_seed(self.seed, int.from_bytes(digest), len(messages))
        message = self.participant.say(messages, replace(self.sampling, seed=seed))
        reply = without_thoughts(self.thread.call(asyncio.wait_for(message, self.seconds)).text)[0].strip()
        if LEAVE in reply:
            return None
        if not reply:
            raise SimulatedUserSilent(f"the model that plays the simulated user of {task.id} returned no text")
        return reply


def users_view(dialogue: Sequence[Message]) -> list[dict[str, str]]:
    """Return a dialogue as the user's model sees it: without tools, and with user and assistant swapped."""
    visible = []
    for number, message in enumerate(dialogue, start=1):
        answered = number < len(dialogue) and dialogue[number].role is Role.TOOL
        if message.role is Role.USER:
            visible.append({"role": "assistant", "content": message.content})
        elif message.role is Role.ASSISTANT and not answered:
            visible.append({"role": "user", "content": message.spoken})
    return visible
