from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from turntree.agents.gateway.http.errors import ApiError
from turntree.agents.gateway.http.wire import (
    MANY,
    MOST,
    ChatRequest,
    Content,
    Described,
    Fields,
    Loose,
    Stops,
    Temperature,
    Tokens,
    Top,
    TopP,
    read,
    whole,
)

Messages = list[dict[str, Any]]
LOGPROBS = "message.output_text.logprobs"  #: entry of ``include`` that asks for log-probabilities
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")


def _parts(value: Any) -> Any:
    # The parts of a message, an output or a thought, as the text parts of a chat.
    if not isinstance(value, list):
        return value
    return [
        {"type": "text", "text": part.get("refusal", part.get("text"))}
        if isinstance(part, dict) and part.get("type") in _TEXT_PARTS
        else part
        for part in value
    ]


Text = Annotated[Content, BeforeValidator(_parts)]


class MessageItem(Loose):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Text


class CallItem(Loose):
    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str


class OutputItem(Loose):
    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1)
    output: Text


class ReasoningItem(Loose):
    type: Literal["reasoning"]
    content: Text = ""
    summary: Text = ""


Item = Annotated[MessageItem | CallItem | OutputItem | ReasoningItem, Field(discriminator="type")]


def _items(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        return value
    # Clients may leave out the type of a message.
    return [{"type": "message", **item} if isinstance(item, dict) and "role" in item else item for item in value]


class FunctionTool(Described):
    type: Literal["function"]
    strict: bool | None = None


def _choice(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        raise ValueError("allowed_tools is not supported; send only the tools that may be called")
    return {"function": {"name": value.get("name")}} if isinstance(value, dict) else value


class TextOptions(Loose):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


class Reasoning(Loose):
    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(Fields):
    """Body of ``/v1/responses``."""

    model: str = Field(min_length=1)
    input: Annotated[list[Item], BeforeValidator(_items), Field(min_length=1, max_length=MANY)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    tools: list[FunctionTool] | None = Field(None, max_length=128)
    tool_choice: Annotated[Any, BeforeValidator(_choice)] = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, whole(-1, MOST)] | None = None
    top_logprobs: Top | None = None
    stop: Stops = None
    seed: Annotated[int, whole(-(1 << 63), (1 << 64) - 1)] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    metadata: dict[str, Any] | None = None
    client_metadata: dict[str, Any] | None = None
    user: str | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None

    @field_validator("tools", mode="before")
    @classmethod
    def _only_functions(cls, tools: Any) -> Any:
        for number, tool in enumerate(tools if isinstance(tools, list) else ()):
            if isinstance(tool, dict) and tool.get("type") != "function":
                raise ValueError(
                    f"tool {number}: expected type 'function', got {tool.get('type')!r:.80}, which runs on OpenAI's "
                    "servers or needs a constrained answer; remove this tool"
                )
        return tools

    def messages(self) -> Messages:
        """Return the input as chat messages; an answer's reasoning, text and calls are one message."""
        chat_messages: Messages = []
        for item in self.input:
            if isinstance(item, OutputItem):
                chat_messages.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
                continue
            if isinstance(item, MessageItem) and item.role != "assistant":
                chat_messages.append({"role": item.role, "content": item.content})
                continue
            if not chat_messages or chat_messages[-1]["role"] != "assistant":
                chat_messages.append({"role": "assistant", "content": ""})
            answer = chat_messages[-1]
            if isinstance(item, MessageItem):
                answer["content"] += item.content
            elif isinstance(item, CallItem):
                function = {"name": item.name, "arguments": item.arguments}
                answer.setdefault("tool_calls", []).append({"id": item.call_id, "function": function})
            elif thought := item.content or item.summary:
                answer["reasoning_content"] = answer.get("reasoning_content", "") + thought
        return chat_messages

    def ignored(self) -> Iterator[str]:
        """Yield the fields that have no effect here, and without which the answer is still right."""
        if self.reasoning is not None and self.reasoning.effort not in (None, "none"):
            yield "reasoning.effort"
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            yield "text.verbosity"

    def chat(self, messages: Messages) -> ChatRequest:
        """Return the equivalent chat request for the dialogue ``messages``.

        Raises:
            ApiError: 400 if the chat exceeds a limit or ends with an answer.
        """
        if messages[-1]["role"] == "assistant":
            problem = "the input ends with an answer; end it with a message of the user or the output of a call"
            raise ApiError(400, problem, param="input", code="invalid_value")
        shared = ("model", "temperature", "top_p", "top_k", "stop", "seed", "stream", "parallel_tool_calls")
        described = ("name", "description", "parameters")
        functions = [{name: getattr(tool, name) for name in described} for tool in self.tools or ()]
        logprobs = LOGPROBS in (self.include or ())
        return read(
            ChatRequest,
            {name: getattr(self, name) for name in shared}
            | {
                "messages": _with_system(self.instructions, messages),
                "tools": [{"type": "function", "function": function} for function in functions] or None,
                "tool_choice": self.tool_choice,
                "max_tokens": self.max_output_tokens,
                "response_format": None if self.text is None else self.text.format,
                "logprobs": logprobs,
                "top_logprobs": self.top_logprobs if logprobs else None,
            },
        )


def _with_system(instructions: str | None, messages: Sequence[Mapping[str, Any]]) -> Messages:
    # Many chat templates accept one system message only, so merge the instructions and the first system messages.
    first = next((i for i, message in enumerate(messages) if message["role"] not in ("system", "developer")), 0)
    texts = [text for text in (instructions, *(message["content"] for message in messages[:first])) if text]
    system: Messages = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
    return [*system, *map(dict, messages[first:])]
