from __future__ import annotations

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
    """A tool result. Its ``is_error`` is dropped: templates show only the text."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Content = ""


Block = Annotated[TextBlock | ToolUse | ToolResult, Field(discriminator="type")]


def _blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class Message(Loose):
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(_blocks)]

    @model_validator(mode="after")
    def _check_blocks(self) -> Message:
        allowed, refused = ("tool_use", "tool_result") if self.role == "assistant" else ("tool_result", "tool_use")
        if any(block.type == refused for block in self.content):
            raise ValueError(f"expected text and {allowed} blocks in a message of role {self.role!r}, got {refused}")
        return self

    def in_chat(self) -> list[dict[str, Any]]:
        """Return the chat messages with this content; each tool result becomes its own message."""
        texts = [block.text for block in self.content if isinstance(block, TextBlock)]
        if self.role == "assistant":
            uses = [block for block in self.content if isinstance(block, ToolUse)]
            calls = [{"id": use.id, "function": {"name": use.name, "arguments": use.input}} for use in uses]
            return [{"role": "assistant", "content": "".join(texts), "tool_calls": calls or None}]
        chat_messages: list[dict[str, Any]] = []
        for block in self.content:
            if isinstance(block, ToolResult):
                chat_messages.append({"role": "tool", "content": block.content, "tool_call_id": block.tool_use_id})
            elif isinstance(block, TextBlock) and chat_messages and chat_messages[-1]["role"] == self.role:
                chat_messages[-1]["content"] += block.text
            elif isinstance(block, TextBlock):
                chat_messages.append({"role": self.role, "content": block.text})
        return chat_messages or [{"role": self.role}]


class Tool(Loose):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None


class Choice(Loose):
    type: Literal["auto", "none"]
    disable_parallel_tool_use: bool | None = None

    @field_validator("type", mode="before")
    @classmethod
    def _refuse_forced(cls, value: Any) -> Any:
        if value in ("any", "tool"):
            raise ValueError("forced tool calls are not supported: expected auto or none; name the tool in a message")
        return value


class CountRequest(Fields):
    """Body of ``/v1/messages/count_tokens``."""

    model: str = Field(min_length=1)
    messages: list[Message] = Field(min_length=1, max_length=MANY)
    system: Content = ""
    tools: list[Tool] | None = Field(None, max_length=128)
    tool_choice: Choice | None = None
    cache_control: dict[str, Any] | None = None

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
        chat = {
            "model": self.model,
            "messages": [*system, *(chat_message for message in self.messages for chat_message in message.in_chat())],
            "tools": [{"type": "function", "function": tool} for tool in tools] or None,
            "tool_choice": choice.type if choice else None,
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
