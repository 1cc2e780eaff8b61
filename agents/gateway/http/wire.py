"""Request bodies in OpenAI's format, with vLLM's extra fields.

Invariant: a field that would change the answer and cannot be honoured is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from turntree.agents.engines.protocol import Sampling
from turntree.agents.gateway.http.errors import ApiError, field_error, without_neutral
from turntree.envs.parsers.call_json import read_arguments


def within(low: float, high: float, *, what: str = "a number", also: float | None = None) -> WrapValidator:
    """Return a validator whose error states the range and the received value.

    Args:
        also: A value outside the range that is accepted.
    """
    other = "" if also is None else f"{also} or "

    def check(value: Any, valid: ValidatorFunctionWrapHandler) -> Any:
        try:
            number = valid(value)
        except ValidationError:
            number = None
        if number is None or not (low <= number <= high or number == also):
            raise ValueError(f"expected {other}{what} from {low} to {high}, got {_repr(value)}")
        return number

    return WrapValidator(check)


def _repr(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # Python refuses to print integers of thousands of digits
        return f"an integer of {value.bit_length()} bits"


def whole(low: int, high: int) -> WrapValidator:
    return within(low, high, what="an integer")


MOST = (1 << 31) - 1  #: engines hold these numbers in 32 bits

#: 0 is greedy; float32 cannot hold the scaled logits below 1e-4
Temperature = Annotated[float, within(0.0001, 100, also=0)]
TopP = Annotated[float, within(0.000001, 1)]
Penalty = Annotated[float, within(-2, 2)]
Figure = Annotated[float, within(-1_000_000, 1_000_000)]  #: a reward, a part of a reward, or a weight
Tokens = Annotated[int, whole(1, MOST)]
Token = Annotated[int, whole(0, MOST)]  #: a token id; the vocabulary size is checked by the engine
Top = Annotated[int, whole(0, 20)]  #: number of most probable tokens to return


Body = TypeVar("Body", bound=BaseModel)
MANY = 4096
_CHOICES = ("none", "auto", "required")


def read(model: type[Body], body: bytes | dict[str, Any]) -> Body:
    """Validate a JSON body.

    Raises:
        ApiError: 400; the message names the field.
    """
    try:
        return model.model_validate(body) if isinstance(body, dict) else model.model_validate_json(body)
    except ValidationError as error:
        raise field_error(error.errors(include_url=False, include_context=False), model.model_fields) from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None


def _texts(value: Any) -> list[str]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(text, str) and text for text in values) or len(values) > 16:
        raise ValueError(f"expected a string, or a list of at most 16 strings, none empty, got {value!r:.80}")
    return values


def _content(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise ValueError(f"expected a string or a list of parts, got {value!r:.80}")
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(
                f'this model reads only text: expected parts {{"type": "text", "text": ...}}, got {part!r:.80}'
            )
    # A separator, so that the last word of one part and the first word of the next stay apart.
    return "\n".join(part["text"] for part in value)


def _arguments(value: Any) -> dict[str, Any]:
    if value is None or (isinstance(value, str) and not value.strip()):
        # Some clients send an empty string for a call without arguments.
        return {}
    try:
        arguments = read_arguments(value) if isinstance(value, str) else value
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise ValueError(f"expected a JSON object as a string, got {value!r:.80}")
    return arguments


def _choice(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("function", {}).get("name"), str):
        return "required"
    if value not in (None, *_CHOICES):
        expected = 'expected "none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
        raise ValueError(f"{expected}, got {value!r:.80}")
    return value


class Strict(BaseModel):
    """Base of bodies in which unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Loose(BaseModel):
    """Base of objects that clients echo, often with extra fields."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


Content = Annotated[str, BeforeValidator(_content)]
Stops = Annotated[list[str] | None, BeforeValidator(lambda value: _texts(value) if value else None)]


class Function(Loose):
    name: str = Field(min_length=1)
    arguments: Annotated[dict[str, Any], BeforeValidator(_arguments)] = Field(default_factory=dict)


class Call(Loose):
    id: str | None = None
    type: Literal["function"] | None = "function"
    function: Function


class WireMessage(Loose):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = ""
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: list[Call] | None = Field(default=None, max_length=128)
    tool_call_id: str | None = None
    function_call: None = None

    @field_validator("function_call", mode="before")
    @classmethod
    def _refuse_old_calls(cls, value: Any) -> Any:
        if value is not None:
            raise ValueError("the field function_call is no longer supported; send the call in tool_calls")
        return value

    @field_validator("tool_calls")
    @classmethod
    def _distinct_ids(cls, calls: list[Call] | None) -> list[Call] | None:
        ids = [call.id for call in calls or () if call.id]
        if len({*ids}) < len(ids):
            raise ValueError(f"expected calls with distinct ids, got {ids!r:.80}")
        return calls


class Described(Loose):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None


class WireTool(Loose):
    type: Literal["function"]
    function: Described


class StreamOptions(Loose):
    include_usage: bool | None = None


class Fields(Strict):
    @model_validator(mode="before")
    @classmethod
    def _drop_neutral(cls, body: Any) -> Any:
        # Runs before validation, which would refuse unknown fields.
        return without_neutral(body, cls.model_fields)


class SamplingFields(Fields):
    model: str = Field(min_length=1)
    n: Annotated[int, whole(1, 128)] = 1
    stop: Stops = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, whole(-1, MOST)] | None = None
    min_p: Annotated[float, within(0, 1)] | None = None
    repetition_penalty: Annotated[float, within(0.01, 100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    max_tokens: Tokens | None = None
    stop_token_ids: list[Token] | None = Field(None, max_length=64)
    seed: Annotated[int, whole(-(1 << 63), (1 << 64) - 1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    logit_bias: dict[str, float] | None = None

    @field_validator("logit_bias")
    @classmethod
    def _no_bias(cls, value: dict[str, float] | None) -> None:
        if value:
            raise ValueError("logit biases are not supported; leave this field out")

    def sampling(self, *, stops: Sequence[int], most: int, top: int) -> Sampling:
        """Return the engine's sampling parameters; ``top`` is the number of top tokens to return."""
        given = {
            name: value
            for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
            if (value := getattr(self, name)) is not None
        }
        return Sampling(
            **given,
            # Some clients send 0 for "all".
            top_k=self.top_k or -1,
            max_tokens=most,
            stop_token_ids=tuple(dict.fromkeys((*stops, *(self.stop_token_ids or ())))),
            seed=self.seed,
            top_logprobs=top,
        )


class ChatRequest(SamplingFields):
    messages: list[WireMessage] = Field(min_length=1, max_length=MANY)
    tools: list[WireTool] | None = Field(None, max_length=128)
    tool_choice: Annotated[str | None, BeforeValidator(_choice)] = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    response_format: dict[str, Any] | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @field_validator("messages")
    @classmethod
    def _results_follow_calls(cls, messages: list[WireMessage]) -> list[WireMessage]:
        made: set[str | None] = {None, ""}
        for number, message in enumerate(messages):
            made.update(call.id for call in message.tool_calls or ())
            if message.role == "tool" and message.tool_call_id not in made:
                expected = "expected tool_call_id to be the id of a call in an earlier message"
                raise ValueError(f"message {number}: {expected}, got {message.tool_call_id!r:.80}")
        return messages

    @field_validator("top_logprobs")
    @classmethod
    def _with_logprobs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value and not info.data.get("logprobs"):
            raise ValueError("this field needs logprobs: true")
        return value

    @property
    def most(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def wishes(self) -> Iterator[tuple[str, str]]:
        """Yield the fields that constrain what is sampled, each with the reason why the gateway cannot obey it."""
        if self.tool_choice not in (None, "none", "auto"):
            yield "tool_choice", "forced tool calls are not supported: expected auto or none"
        if self.response_format is not None and self.response_format.get("type") != "text":
            expected = f'expected {{"type": "text"}}, got {self.response_format!r:.80}'
            yield "response_format", f"constrained output is not supported: {expected}"


class CompletionRequest(SamplingFields):
    prompt: str | list[str] | list[Token] | list[list[Token]]
    logprobs: Top | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None
    max_tokens: Tokens | None = 16

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _one_kind(cls, value: Any, check: Any) -> Any:
        try:
            prompt = check(value)
        except ValidationError:
            prompt = []
        if not prompt or [] in (prompt if isinstance(prompt, list) else ()):
            problem = f"expected a string, token ids from 0 to {MOST}, or a list of either, none empty"
            raise ValueError(f"{problem}, got {value!r:.80}")
        return prompt

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        return [self.prompt] if isinstance(self.prompt[0], int) else self.prompt  # type: ignore[list-item,return-value]
