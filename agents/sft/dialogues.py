"""Turns dialogues of OpenAI messages into training rows, rendered like rollouts.

As in ``rollout()``, ``tool_format.opening`` renders the first prompt and ``Renderer.extend`` all later prompts. Tool
calls become text in the environment's format. Not supported: images and other non-text content.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from turntree.agents.engines.chat_server import ChatTurn
from turntree.agents.engines.protocol import Completion, FinishReason
from turntree.agents.engines.scripted import turn_tokens
from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.errors import UsageError
from turntree.agents.loop.chat_rollout import written
from turntree.agents.loop.chat_template import ChatTemplate
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.tool_format import opening
from turntree.envs.data.json_files import json_lines
from turntree.envs.message import Role, ToolCall

_ROW = (
    'a row is {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}], '
    '"tools": [...]}; tools are optional'
)


def dialogues_in(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a JSONL file with their line numbers; raise ``UsageError`` if one is malformed."""

    def refuse(number: int, problem: str) -> UsageError:
        return UsageError(f"{path}, line {number}: {problem}; {_ROW}")

    for number, row in json_lines(path, refuse, halves=False):
        if problem := _misfit(row):
            hint = "; pass tasks of the environment with --env-arg data=FILE" if "messages" not in row else ""
            raise refuse(number, problem + hint)
        yield number, row


def _misfit(row: Mapping[str, Any]) -> str:
    messages, tools = row.get("messages"), row.get("tools", [])
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return f'"messages" must be a list of OpenAI messages, got {messages!r:.60}'
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "function" in tool for tool in tools):
        return f'"tools" must be a list of OpenAI tool schemas, got {tools!r:.60}'
    for number, message in enumerate(messages):
        where, role = f"message {number}", message.get("role")
        if role not in list(Role):
            return f"{where} needs a role, one of {', '.join(Role)}, got {role!r:.40}"
        if not isinstance(message.get("content") or "", str):
            return f"{where} must have text as its content, got {message['content']!r:.60}"
        if role == Role.ASSISTANT and not message.get("content") and not message.get("tool_calls"):
            return f"{where} is an assistant message with neither content nor tool_calls"
        if problem := _bad_call(message):
            return f"{where}: {problem}"
    roles = [message["role"] for message in messages]
    if Role.ASSISTANT not in roles[1:] or roles[0] == Role.ASSISTANT:
        return f"the assistant must answer a message, got the roles {', '.join(roles) or 'of no message'}"
    if any(left == right == Role.ASSISTANT for left, right in itertools.pairwise(roles)):
        return "two assistant messages follow each other; join them"
    return ""


def _bad_call(message: Mapping[str, Any]) -> str:
    for call in message.get("tool_calls") or ():
        try:
            _call(call)
        except (TypeError, KeyError, ValueError, AttributeError):
            form = '{"type": "function", "function": {"name": "...", "arguments": "{...}"}}'
            return f"expected a tool call such as {form}, got {call!r:.80}"
    return ""


def _call(entry: Mapping[str, Any]) -> ToolCall:
    # OpenAI writes arguments as JSON text, but many data sets contain a mapping.
    value = entry["function"].get("arguments") or {}
    arguments = json.loads(value) if isinstance(value, str) else value
    if not isinstance(arguments, dict):
        raise TypeError("arguments must be an object")
    return ToolCall(name=str(entry["function"]["name"]), arguments=arguments, id=str(entry.get("id", "")))


def closing_of(template: ChatTemplate) -> str:
    """Return the text that closes the thought opened by the generation prompt; empty if the prompt opens none."""
    return template.thought.closing if template.thought and template.opens == "thought" else ""


def dialogue_views(
    messages: Sequence[Mapping[str, Any]], renderer: Renderer, env: Any, tools: Sequence[Mapping[str, Any]] = ()
) -> tuple[TokenView, ...]:
    """Return a dialogue's tokens, with assistant messages as the policy's turns; empty without such messages.

    Messages after the last assistant message are dropped. A message with ``"weight": 0`` is excluded from the loss.
    """
    turns: list[Turn] = []
    observation: list[Mapping[str, Any]] = []
    closing = closing_of(renderer.template)
    for message in messages:
        if message["role"] != Role.ASSISTANT:
            observation.append({name: value for name, value in message.items() if name != "weight"})
            continue
        calls = tuple(map(_call, message.get("tool_calls") or ()))
        chat_turn = ChatTurn(content=message.get("content") or "", calls=calls, finish_reason=FinishReason.STOP)
        text = written(chat_turn, env.unwrapped.parser) if calls else chat_turn.content
        opened = renderer.template.opened  # the text may repeat the thought marker that ends the prompt
        text = text.removeprefix(opened) if opened and text.startswith(opened) else closing + text
        if turns:
            last = turns[-1]
            prompt = renderer.extend(last.prompt_ids, last.completion.token_ids, observation)
        else:
            prompt = opening(env, renderer, observation, tools)
        tokens = turn_tokens(text, renderer.tokenizer, renderer.stop_token_ids)
        completion = Completion(
            token_ids=tuple(tokens),
            logprobs=(0.0,) * len(tokens),
            finish_reason=FinishReason.STOP,
            forced=(message.get("weight", 1) == 0,) * len(tokens),
        )
        turns.append(Turn(prompt_ids=prompt, completion=completion, text=text))
        observation = []
    episode = Episode(env_id="", task=None, seed=None, messages=(), turns=tuple(turns), stop_reason=StopReason.DONE)
    return TokenView.of_each(episode)
