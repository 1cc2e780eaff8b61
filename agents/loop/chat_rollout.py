"""The episode loop for a policy behind a chat server: messages in, messages out.

This loop is ``rollout`` with a chat server instead of a renderer and an engine. If the server has parsed tool calls,
the loop writes the calls as text in the environment's format, and the environment parses this text.

Invariant: no token id is invented. The server returns only text, so a turn and its prompt have no token ids
(``Turn.text_only``). Such a turn cannot be trained on, and its tokens are not counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from turntree.agents.engines.chat_server import ChatServer, ChatTurn, ContextFull
from turntree.agents.engines.engine_choice import ToolCalls
from turntree.agents.engines.protocol import Completion, Sampling, derive_seed
from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.agents.errors import UsageError
from turntree.agents.loop.episode_driver import EpisodeDriver, StepOutcome
from turntree.agents.loop.escaping import for_server
from turntree.agents.loop.rollout import PlaysItself
from turntree.agents.loop.template_messages import tools_as_user
from turntree.agents.loop.tool_format import told_of_tools
from turntree.envs.limits import Limits
from turntree.envs.message import ToolCall
from turntree.envs.parsers import HermesParser, ToolParser


async def chat_rollout(
    env: Any,
    server: ChatServer,
    limits: Limits | None = None,
    *,
    tool_calls: ToolCalls = ToolCalls.NATIVE,
    index: int | None = None,
    seed: int | None = None,
    sampling: Sampling | None = None,
) -> Episode:
    """Play one episode; see ``rollout`` for the arguments that are not described here.

    Args:
        env: A ``turntree.envs.Env``, or a wrapper around one.
        limits: Only ``max_turn_tokens`` is used. The server enforces its own context length; an episode that fills the
            context ends with ``max_tokens``.
        tool_calls: Whether the server or the environment parses tool calls.
        sampling: Sampling parameters, with seeds as in ``rollout``; a server may ignore the seeds.

    Raises:
        UsageError: If the environment plays its episodes itself, which needs an engine that returns tokens.
    """
    if isinstance(env.unwrapped, PlaysItself):
        raise UsageError(
            f"{type(env.unwrapped).__name__} plays its episodes on an engine of tokens (local, vllm, sglang); a "
            "program that uses a chat server must call the server itself"
        )
    play = _ChatPlay(
        env=env,
        server=server,
        native=tool_calls is ToolCalls.NATIVE,
        limits=limits or env.unwrapped.limits,
        task=None,
        seed=seed,
        sampling=sampling or Sampling(),
    )
    return await play.to_end(play.run(index))


@dataclass(slots=True, kw_only=True)
class _ChatPlay(EpisodeDriver):
    server: ChatServer
    native: bool
    limits: Limits
    sampling: Sampling
    dialogue: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, index: int | None) -> StopReason:
        info = await self.begin(index)
        tools = info["tools"]
        self.open(info["messages"], tools)
        while True:
            try:
                with self.engine_at_work():
                    offered = tools if self.native else ()
                    chat_turn = await self.server.complete(self.dialogue, self.turn_sampling(), tools=offered)
            except ContextFull:
                return StopReason.MAX_TOKENS
            text = written(chat_turn, self.parser)
            completion = Completion(token_ids=(), logprobs=(), finish_reason=chat_turn.finish_reason)
            outcome = await self.step(Turn(prompt_ids=(), completion=completion, text=text))
            if outcome.stop_reason is not None:
                return outcome.stop_reason
            if outcome.history:
                self.open(outcome.history, tools)
            else:
                self.dialogue += next_messages(chat_turn, text, outcome._replace(messages=for_server(outcome.messages)))

    def open(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> None:
        # System messages are the environment's own text; the text of all other messages may be untrusted.
        escaped = [dict(message) if message["role"] == "system" else for_server([message])[0] for message in messages]
        self.dialogue = tools_as_user(escaped)
        env = self.env.unwrapped
        if tools and not self.native and not getattr(env, "describes_tools", False):
            example = getattr(env, "example_call", None)
            self.dialogue = told_of_tools(self.dialogue, tools, self.parser, example)

    def turn_sampling(self) -> Sampling:
        base = self.sampling.seed if self.sampling.seed is not None else self.seed
        return replace(
            self.sampling,
            max_tokens=self.limits.max_turn_tokens or self.sampling.max_tokens,
            seed=None if base is None else derive_seed(base, len(self.turns)),
        )

    @property
    def parser(self) -> ToolParser:
        parser: ToolParser = getattr(self.env.unwrapped, "parser", None) or HermesParser()
        return parser


def written(chat_turn: ChatTurn, parser: ToolParser) -> str:
    """Return a turn as one text, with its tool calls in the environment's format.

    >>> from turntree.agents.engines.protocol import FinishReason
    >>> call = ToolCall(name="now", arguments={})
    >>> written(ChatTurn(content="Let me see.", calls=(call,), finish_reason=FinishReason.STOP), HermesParser())
    'Let me see.\\n<tool_call>\\n{"name": "now", "arguments": {}}\\n</tool_call>'
    """
    calls = [parser.format_call(call) for call in chat_turn.calls]
    full_text = "\n".join([*filter(None, [chat_turn.content]), *calls])
    # The content may contain markers of the format, and some formats allow no text next to calls.
    for text in (full_text, "\n".join(calls), "; ".join(calls)):
        parsed = parser.parse(text).calls
        if [_call(call) for call in parsed[len(parsed) - len(calls) :]] == [_call(call) for call in chat_turn.calls]:
            return text
    return full_text


def _call(call: ToolCall) -> tuple[str, dict[str, Any]]:
    return call.name, dict(call.arguments)


def next_messages(chat_turn: ChatTurn, text: str, outcome: StepOutcome) -> list[dict[str, Any]]:
    answers = [message for message in outcome.messages if message["role"] == "tool"]
    rest = [message for message in outcome.messages if message["role"] != "tool"]
    ids = [call.id or f"call{number:05d}" for number, call in enumerate(chat_turn.calls)]
    # If the environment found other calls in the text than the server, send all messages back as text.
    if not ids or not len(ids) == len(outcome.calls) == len(answers):
        return [{"role": "assistant", "content": text}, *tools_as_user([dict(message) for message in outcome.messages])]
    calls = [
        {
            "type": "function",
            "id": name,
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
        }
        for name, call in zip(ids, chat_turn.calls, strict=True)
    ]
    return [
        {"role": "assistant", "content": chat_turn.content, "tool_calls": calls},
        *(
            {"role": "tool", "tool_call_id": name, "content": answer["content"]}
            for name, answer in zip(ids, answers, strict=True)
        ),
        *map(dict, rest),
    ]
