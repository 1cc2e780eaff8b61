from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from turntree.agents.gateway.http.errors import ApiError
from turntree.agents.gateway.http.wire import (
    MANY,
    MOST,
    ChatRequest,
    Content,
    Fields,
    Loose,
    Stops,
    Temperature,
    Tokens,
    TopP,
    read,
    whole,
)


class TextBlock(Loose):
    type: Literal["text"]
    text: str


class ToolUse(Loose):
    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1)
    input: dict[str, Any]


class ToolResult(Loose):
    """A tool result. Templates show only the text, so ``is_error`` matters only if there is no text."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Content = ""
    is_error: bool | None = None

    @property
    def text(self) -> str:
        return self.content or ("The tool failed." if self.is_error else "")


class ThinkingBlock(Loose):
    type: Literal["thinking"]
    thinking: str


class RedactedThinking(Loose):
    """A thought that only Anthropic's servers can read; it is left out."""

    type: Literal["redacted_thinking"]


Block = Annotated[TextBlock | ToolUse | ToolResult | ThinkingBlock | RedactedThinking, Field(discriminator="type")]


def _blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class Message(Loose):
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(_blocks)]

    @model_validator(mode="after")
    def _check_blocks(self) -> Message:
        thoughts = ("thinking", "redacted_thinking")
        allowed = ("text", "tool_use", *thoughts) if self.role == "assistant" else ("text", "tool_result")
        for block in self.content:
            if block.type not in allowed:
                expected = f"expected blocks of type {', '.join(allowed)} in a message of role {self.role!r}"
                raise ValueError(f"{expected}, got {block.type}")
        return self

    def in_chat(self) -> list[dict[str, Any]]:
        """Return the chat messages with this content; each tool result becomes its own message."""
        texts = [block.text for block in self.content if isinstance(block, TextBlock)]
        if self.role == "assistant":
            uses = [block for block in self.content if isinstance(block, ToolUse)]
            calls = [{"id": use.id, "function": {"name": use.name, "arguments": use.input}} for use in uses]
            thoughts = "\n".join(block.thinking for block in self.content if isinstance(block, ThinkingBlock))
            content = {"content": "".join(texts), "reasoning_content": thoughts or None}
            return [{"role": "assistant", "tool_calls": calls or None, **content}]
        chat_messages: list[dict[str, Any]] = []
        for block in self.content:
            if isinstance(block, ToolResult):
                chat_messages.append({"role": "tool", "content": block.text, "tool_call_id": block.tool_use_id})
            elif isinstance(block, TextBlock) and chat_messages and chat_messages[-1]["role"] == self.role:
                chat_messages[-1]["content"] += "\n" + block.text
            elif isinstance(block, TextBlock):
                chat_messages.append({"role": self.role, "content": block.text})
        return chat_messages or [{"role": self.role}]


class Tool(Loose):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None


class Choice(Loose):
    type: Literal["auto", "none", "any", "tool"]
    disable_parallel_tool_use: bool | None = None


class Thinking(Loose):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Any = None  #: ignored


class OutputConfig(Loose):
    effort: str | None = None
    format: dict[str, Any] | None = None


_CHOICES = {"any": "required", "tool": "required"}


class CountRequest(Fields):
    """Body of ``/v1/messages/count_tokens``."""

    model: str = Field(min_length=1)
    messages: list[Message] = Field(min_length=1, max_length=MANY)
    system: Content = ""
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: Choice | None = None
    cache_control: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: dict[str, Any] | None = None
    betas: list[str] | None = None

    @field_validator("messages")
    @classmethod
    def _check_history(cls, messages: list[Message]) -> list[Message]:
        made: set[str] = set()
        for number, message in enumerate(messages):
            if message.role == "system" and number:
                raise ValueError(f"message {number}: expected user or assistant, got system; use the field system")
            for block in message.content:
                if isinstance(block, ToolUse) and block.id in made:
                    raise ValueError(f"message {number}: tool_use ids must be unique, got {block.id!r:.80} again")
                if isinstance(block, ToolResult) and block.tool_use_id not in made:
                    problem = f"tool_result for {block.tool_use_id!r:.80}, but no earlier tool_use has this id"
                    raise ValueError(f"message {number}: {problem}")
                made.update((block.id,) if isinstance(block, ToolUse) else ())
        return messages

    @property
    def thinks(self) -> bool:
        """Whether the client reads thinking blocks."""
        return self.thinking is not None and self.thinking.type != "disabled"

    def ignored(self) -> Iterator[str]:
        """Yield the fields that have no effect here, and without which the answer is still right."""
        if self.thinking is not None and self.thinking.budget_tokens is not None:
            yield "thinking.budget_tokens"
        if self.output_config is not None and self.output_config.effort is not None:
            yield "output_config.effort"
        if self.context_management is not None and self.context_management.get("edits"):
            yield "context_management"
        if self.betas:
            yield "betas"

    def chat(self, **fields: Any) -> ChatRequest:
        """Return the equivalent chat request, with further ``fields``.

        Raises:
            ApiError: 400 if the last message is the assistant's (no prefill), or the chat exceeds a limit.
        """
        if self.messages[-1].role == "assistant":
            problem = "prefilling the assistant's message is not supported; end with a user message"
            raise ApiError(400, problem, param="messages", code="invalid_value")
        system = [{"role": "system", "content": self.system}] if self.system else []
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
            for tool in self.tools or ()
        ]
        choice = self.tool_choice
        shaped = None if self.output_config is None else self.output_config.format
        chat = {
            "model": self.model,
            "messages": [*system, *(chat_message for message in self.messages for chat_message in message.in_chat())],
            "tools": [{"type": "function", "function": tool} for tool in tools] or None,
            "tool_choice": None if choice is None else _CHOICES.get(choice.type, choice.type),
            "response_format": shaped,
            "parallel_tool_calls": False if choice and choice.disable_parallel_tool_use else None,
        }
        return read(ChatRequest, chat | fields)


class MessagesRequest(CountRequest):
    max_tokens: Tokens
    stop_sequences: Stops = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, whole(0, MOST)] | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None

    def chat(self, **fields: Any) -> ChatRequest:
        shared_fields = {
            name: getattr(self, name) for name in ("max_tokens", "temperature", "top_p", "top_k", "stream")
        }
        return CountRequest.chat(self, stop=self.stop_sequences, **shared_fields, **fields)
