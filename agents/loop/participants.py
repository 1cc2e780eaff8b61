"""Models that write the next message of a dialogue: simulated users and judges."""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from turntree.agents.engines.chat_server import ChatServer
from turntree.agents.engines.engine_choice import EngineChoice, EngineName, open_policy
from turntree.agents.engines.event_thread import EventThread
from turntree.agents.engines.protocol import Engine, FinishReason, Sampling, TurnRequest
from turntree.agents.errors import AgentError
from turntree.agents.loop.escaping import for_server
from turntree.agents.loop.renderer import Renderer


class ParticipantSilent(AgentError):
    """The participant's engine aborted a message."""


class Said(NamedTuple):  # one message of a participant
    text: str
    whole: bool = True  #: whether the message ended by itself instead of at a token limit


class Participant(Protocol):
    async def say(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling) -> Said:
        """Return the next message; ``messages`` are OpenAI messages and end with a user message."""


class EngineParticipant:
    def __init__(self, engine: Engine, renderer: Renderer) -> None:
        self.engine, self.renderer = engine, renderer

    async def say(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling) -> Said:
        stops = replace(sampling, stop_token_ids=self.renderer.stop_token_ids)
        # Pass no dialogue state and no reuse, because the draft store (earlier turns) is only for the policy's turns.
        completion = await self.engine.generate(TurnRequest(self.renderer.initial(messages), stops, reuse=False))
        if completion.finish_reason is FinishReason.ABORT:
            raise ParticipantSilent("the participant's engine aborted its message")
        return Said(self.renderer.turn_text(completion.token_ids), completion.finish_reason is FinishReason.STOP)


class ServerParticipant:
    def __init__(self, server: ChatServer) -> None:
        self.server = server

    async def say(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling) -> Said:
        # The server's chat template is unknown, so escape the special tokens of well-known templates.
        turn = await self.server.complete(for_server(messages), sampling)
        return Said(turn.content, turn.finish_reason is FinishReason.STOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantSettings:
    """A participant's model and sampling parameters."""

    engine: str = "openai"
    """A server of chat completions (``openai``), or an engine: ``local``, ``vllm``, ``sglang``."""
    model: str = ""
    """Model directory or Hugging Face id. For a server: the model's name, or empty if the server has one model."""
    base_url: str | None = None
    """URL of the server. Without a URL, each process that plays or scores starts an engine."""
    seed: int = 0
    """Seed of all messages."""
    temperature: float = 0.7
    max_tokens: int = 256
    """Token limit per message."""
    max_context: int = 8192
    """Token limit of prompt and message together."""
    max_batch: int = 16
    """Messages sampled at the same time."""
    seconds: float = 120.0
    """Time limit per message."""

    def __post_init__(self) -> None:
        if self.engine not in tuple(EngineName):
            raise ValueError(f"engine must be one of {', '.join(EngineName)}, got {self.engine!r}")
        if self.engine == EngineName.OPENAI and not self.base_url:
            raise ValueError("engine=openai needs base_url, for example http://localhost:8000/v1")
        if self.engine != EngineName.OPENAI and not self.model:
            raise ValueError(f"engine={self.engine} needs model, a directory or a Hugging Face id")
        if self.engine == EngineName.LOCAL and self.base_url:
            raise ValueError("engine=local has no server; remove base_url")
        for name in ("max_tokens", "max_context", "max_batch", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)!r}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


def opened_participant(settings: ParticipantSettings) -> tuple[Participant, EventThread]:
    """Start the model or connect to it; return it with its thread. Both are closed when the process exits."""
    thread, stack = EventThread("turntree-participant"), AsyncExitStack()

    def close() -> None:
        if not thread.closed:
            thread.call(stack.aclose())
            thread.close()

    try:
        participant = thread.call(_participant(settings, stack))
    except BaseException:
        thread.close()
        raise
    atexit.register(close)
    return participant, thread


async def _participant(settings: ParticipantSettings, stack: AsyncExitStack) -> Participant:
    choice = EngineChoice(
        name=EngineName(settings.engine),
        model=settings.model,
        max_batch=settings.max_batch,
        max_context=settings.max_context,
        base_url=settings.base_url,
    )
    engine = await stack.enter_async_context(open_policy(choice))
    if isinstance(engine, ChatServer):
        return ServerParticipant(engine)
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(settings.model)
    return EngineParticipant(engine, Renderer(tokenizer))
