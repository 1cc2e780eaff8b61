"""Models that say the next message of a dialogue: those that play a customer or a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from turntree.agents.engines.chat_server import ChatServer
from turntree.agents.engines.protocol import Engine, FinishReason, Sampling, TurnRequest
from turntree.agents.errors import AgentError
from turntree.agents.loop.quoted import for_server
from turntree.agents.loop.renderer import Renderer


class SpeakerSilent(AgentError):
    """The engine gave a message up."""


class Said(NamedTuple):
    """A message."""

    text: str
    whole: bool = True
    """Whether it ended by itself, not at a limit."""


class Speaker(Protocol):
    """Says the next message of a dialogue."""

    async def say(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling) -> Said:
        """The next message.

        Args:
            messages: OpenAI messages, the last one a user's.
        """


class EngineSpeaker:
    """A ``Speaker`` over an engine of tokens."""

    def __init__(self, engine: Engine, renderer: Renderer) -> None:
        self.engine, self.renderer = engine, renderer

    async def say(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling) -> Said:
        """The next message.

        Raises:
            SpeakerSilent: If the engine gave the turn up.
        """
        stops = replace(sampling, stop_token_ids=self.renderer.stop_token_ids)
        # The store of drafts keys the policy's turns by their dialogue; these are somebody else's.
        completion = await self.engine.generate(TurnRequest(self.renderer.initial(messages), stops, reuse=False))
        if completion.finish_reason is FinishReason.ABORT:
            raise SpeakerSilent("the engine of the model that speaks gave its message up")
        return Said(self.renderer.turn_text(completion.token_ids), completion.finish_reason is FinishReason.STOP)


class ServerSpeaker:
    """A ``Speaker`` over a server of chat completions.

    Args:
        server: Open, on the loop that speaks.
    """

    def __init__(self, server: ChatServer) -> None:
        self.server = server

    async def say(self, messages: Sequence[Mapping[str, Any]], sampling: Sampling) -> Said:
        """The next message; what well-known templates end messages with is broken up in those of others."""
        turn = await self.server.say(for_server(messages), sampling)
        return Said(turn.content, turn.finish_reason is FinishReason.STOP)
