"""Turns with their exact tokens, and the episode: the result of a rollout.

Invariant: the prompt of turn ``i + 1`` begins with the prompt and the response of turn ``i``, so an episode is one
token sequence with a mask. If an environment shortens the dialogue, a new segment (token sequence) begins there.
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

    DONE = "done"  #: the environment ended the episode
    MAX_TURNS = "max_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    MAX_SECONDS = "max_seconds"
    MAX_ERRORS = "max_errors"
    MAX_TOKENS = "max_tokens"
    FAILURE = "failure"  #: the infrastructure (tool, environment, engine) failed; unrelated to the policy's quality

    def is_truncated(self) -> bool:
        """Return whether a limit or a failure ended the episode, instead of the environment."""
        return self is not StopReason.DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The policy's action between two observations, with the next observation and the reward."""

    prompt_ids: tuple[int, ...]  #: shape (prompt,), up to the policy's first token
    completion: Completion
    text: str  #: the action: decoded response without special tokens, after the thought marker that ends the prompt
    observation: tuple[Message, ...] = ()
    reward: float = 0.0
    parse_error: str = ""  #: why a tool call in the text could not be parsed; empty without such a call
    #: whether the environment shortened the dialogue before this turn (``Env.compact``); this turn begins a segment
    shortened: bool = False

    @property
    def text_only(self) -> bool:
        """Whether only the text is known, because a server returned no token ids."""
        return not self.completion.token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One dialogue about one task."""

    env_id: str
    task: Task | None  #: ``None`` only if the environment failed before it drew a task
    seed: int | None  #: passed to ``reset``
    messages: tuple[Message, ...]  #: the whole dialogue
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    #: reward components, as the environment reported them at the end
    rewards: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""  #: in one line; empty unless ``stop_reason`` is ``FAILURE``
    failure_kind: FailureKind | None = None  #: the part that failed; ``None`` without a failure, or if unknown
    ungraded: tuple[str, ...] = ()  #: rewards that could not grade the answer; if not empty, ``reward`` is meaningless
    #: further dialogues of the same program, such as those of its sub-agents; all have this dialogue's outcome
    extra_dialogues: tuple[Episode, ...] = ()
    shared_turns: int = 0  #: for an extra dialogue: number of first turns shared with an earlier dialogue

    @property
    def segments(self) -> tuple[tuple[Turn, ...], ...]:
        """The turns by segment: each segment is one token sequence and ends where the dialogue was shortened."""
        starts = [0, *(number for number, turn in enumerate(self.turns) if turn.shortened and number)]
        ends = [*starts[1:], len(self.turns)]
        return tuple(self.turns[start:end] for start, end in zip(starts, ends, strict=True))

    @property
    def reward(self) -> float:
        """Sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def masked(self) -> bool:
        """Whether a trainer must exclude this episode because its outcome says nothing about the policy."""
        return self.stop_reason is StopReason.FAILURE or bool(self.ungraded)
