from __future__ import annotations

import difflib
import logging
from collections.abc import Container, Iterable
from typing import Any

from turntree.agents.errors import AgentError

#: field of OpenAI's, vLLM's or Anthropic's API -> values that change nothing, which clients send by default; null is
#: neutral for every field, and any other value is refused because it cannot be honoured
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "container": (),
    "context_management": ({}, {"edits": []}),
    "continue_final_message": (False,),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "mcp_servers": ([],),
    "min_tokens": (0,),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "output_config": ({},),
    "prediction": (),
    "priority": (0,),
    "reasoning_effort": ("none",),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "speed": ("standard",),
    "spaces_between_special_tokens": (True,),
    "thinking": ({"type": "disabled"},),
    "typical_p": (1.0,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def without_neutral(body: Any, fields: Container[str]) -> Any:
    """Return the body without neutral fields; ``fields`` are the fields that the server reads itself."""
    if not isinstance(body, dict):
        return body
    return {
        name: value
        for name, value in body.items()
        if value is not None and (name in fields or not any(_same(value, neutral) for neutral in NEUTRAL.get(name, ())))
    }


def _same(value: Any, other: Any) -> bool:
    # True == 1 in Python, but not in JSON.
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


logger = logging.getLogger(__name__)
_TYPES = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error"}


class ApiError(AgentError):
    """A refused request.

    Args:
        message: What was expected, what was received, and what to do.
        param: Path of the invalid field, for example ``messages.0.role``.
        code: Machine-readable reason.
        retry_after: Seconds after which a retry makes sense.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        # The rest of the body may still arrive, so the connection cannot be reused.
        if self.status in (408, 413):
            headers["Connection"] = "close"
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


class ClientGone(AgentError):
    """The client disconnected before the response."""


def internal_error(what: str) -> ApiError:
    """Log the current exception and return a 500; call it inside an ``except`` block."""
    logger.exception("%s failed", what)
    return ApiError(500, "internal error; see the server's log", code="internal_error")


def field_error(errors: Iterable[Any], fields: Iterable[str]) -> ApiError:
    error = next(iter(errors))
    param = ".".join(map(str, error["loc"])) or None
    if error["type"] == "extra_forbidden":
        name = str(error["loc"][-1])
        if name in NEUTRAL:
            known = ", ".join(map(repr, NEUTRAL[name]))
            problem = f"{param} is not supported here; expected {known + ' or ' if known else ''}no such field"
            return ApiError(400, f"{problem}, got {error.get('input')!r:.80}", param=param, code="unsupported_value")
        near = difflib.get_close_matches(name, list(fields), n=1, cutoff=0.8)
        hint = f"did you mean {near[0]!r}?" if near else "leave it out"
        return ApiError(400, f"unknown field {param!r}; {hint}", param=param, code="unknown_parameter")
    if error["type"] == "missing":
        return ApiError(400, f"the field {param!r} is missing", param=param, code="missing_required_parameter")
    if error["type"] == "json_invalid":
        return ApiError(400, f"the body must be JSON: {error['msg']}", code="invalid_json")
    problem = error["msg"].removeprefix("Value error, ")
    received = repr(error.get("input"))
    # Our own validators state the value themselves.
    received = "" if problem.endswith(received[:40]) or error["type"] == "value_error" else f", got {received[:80]}"
    return ApiError(400, f"{param or 'the body'}: {problem}{received}", param=param, code="invalid_value")
