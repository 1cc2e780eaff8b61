"""Turns with their exact tokens, and the episode around them: the result of a rollout.

Invariant: the prompt of turn ``i + 1`` begins with the prompt of turn ``i``
followed by its response, so an episode is one token sequence with a mask; where
an environment shortens the dialogue, each segment between two such places is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from turntree.agents.engines.protocol import Completion
from turntree.envs.failure import FailureKind
from turntree.envs.message import Message
from turntree.envs.task import Task


class StopReason(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The environment decided."""
    MAX_TURNS = "max_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_SECONDS = "max_seconds"
    MAX_ERRORS = "max_errors"
    MAX_TOKENS = "max_tokens"
    FAILURE = "failure"
    """The infrastructure failed (a tool, the environment, the engine): no verdict on the policy."""

    def is_truncated(self) -> bool:
        """Whether a limit or a failure ended the episode, not the task."""
        return self is not StopReason.DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The policy's action between two observations, with its observation and reward."""

    prompt_ids: tuple[int, ...]
    """Token ids before the policy's first token, shape (prompt,)."""
    completion: Completion
    """What the engine returned: token ids, log-probabilities, draft counters."""
    text: str
    """What its prompt opened of a thought, then the response decoded, special tokens left out; the action given to the
    environment."""
    observation: tuple[Message, ...] = ()
    """What the environment answered."""
    reward: float = 0.0
    """Reward of this turn."""
    parse_error: str = ""
    """Why a tool call in the text could not be parsed; empty if there is none."""
    shortened: bool = False
    """Whether the environment has shortened the dialogue before this turn (``Env.compact``): a segment begins."""

    @property
    def text_only(self) -> bool:
        """Whether only the text is known, as from a server that gives no token ids."""
        return not self.completion.token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One dialogue about one task."""

    env_id: str
    """Registered id of the environment."""
    task: Task | None
    """The task; ``None`` only where the environment failed before it could draw one."""
    seed: int | None
    """Seed given to ``reset``."""
    messages: tuple[Message, ...]
    """The whole dialogue."""
    turns: tuple[Turn, ...]
    """The policy's turns in order."""
    stop_reason: StopReason
    """Why it ended."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Named reward components, as the environment reported them at the end."""
    failure: str = ""
    """The failure in one line; empty unless ``stop_reason`` is ``FAILURE``."""
    failure_kind: FailureKind | None = None
    """The part that failed; ``None`` without a failure, or where it is not known."""
    ungraded: tuple[str, ...] = ()
    """Names of rewards that could not judge the answer; if there are any, the episode's reward is meaningless."""
    others: tuple[Episode, ...] = ()
    """Further dialogues of a program, such as a sub-agent's; they have the outcome of this one."""
    shared_turns: int = 0
    """Of such a dialogue: its first turns that an earlier one of the program has as well, and that are its turns."""

    @property
    def segments(self) -> tuple[tuple[Turn, ...], ...]:
        """The turns between the places where the dialogue was shortened: one token sequence each, every turn in one."""
        starts = [0, *(number for number, turn in enumerate(self.turns) if turn.shortened and number)]
        ends = [*starts[1:], len(self.turns)]
        return tuple(self.turns[start:end] for start, end in zip(starts, ends, strict=True))

    @property
    def reward(self) -> float:
        """Sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def masked(self) -> bool:
        """Whether a trainer must leave this episode out, as its outcome is no verdict on the policy."""
        return self.stop_reason is StopReason.FAILURE or bool(self.ungraded)
