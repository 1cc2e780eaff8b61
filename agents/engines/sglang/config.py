from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turntree.agents.engines.served.settings import ServedConfig
from turntree.agents.engines.sglang.settings import ALGORITHM, SglangSettings

# SGLang 0.5.12 with context_length C refuses prompts of C - 6 or more tokens, and ends a turn at C - 2 tokens in all.
# turntree therefore asks for a longer context. The extra positions are never filled: requests and drafts end at
# `max_context`.
KEPT = 6  #: positions added to ``max_context``; a prompt of ``max_context - 1`` tokens must be below ``C - 6``
#: Environment variable that lets ``context_length`` exceed the model's limit.
ALLOWANCE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


def allowance(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that let SGLang accept ``context_length``, ``KEPT`` included.

    Raises:
        ValueError: If the model's context is shorter than ``max_context``.
    """
    # `max_context` must not exceed the model's limit. `context_length` may; SGLang then requires the variable.
    limit, wanted = _model_limit(arguments), int(arguments["context_length"]) - KEPT
    if wanted > limit:
        raise ValueError(
            f"max_context is {wanted}, but the model {arguments['model_path']} has a context of {limit} tokens; lower "
            "max_context, or extend the model by engine_args={'json_model_override_args': ...}"
        )
    return {ALLOWANCE: "1"} if wanted + KEPT > limit else {}


def _model_limit(arguments: Mapping[str, Any]) -> int:
    from sglang.srt.configs.model_config import ModelConfig

    config = ModelConfig(
        arguments["model_path"],
        trust_remote_code=arguments.get("trust_remote_code", False),
        revision=arguments.get("revision"),
        model_override_args=arguments.get("json_model_override_args", "{}"),
    )
    return int(config.context_len)


#: SGLang's arguments that engine_args may not set
_RESERVED = ("model_path", "context_length", "max_running_requests", "skip_tokenizer_init")
_ALGORITHM = "speculative_algorithm"
_NGRAM = "NGRAM"


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangEngineConfig(ServedConfig):
    """Settings of an SGLang engine in this process."""

    draft_tokens: int = 0
    """Maximum tokens of one request in one pass, including the last sampled token; 0 decodes without drafts."""
    speculation: SglangSettings = field(default_factory=SglangSettings)
    """Settings of turntree's draft worker."""

    def __post_init__(self) -> None:
        self._check({"draft_tokens": 0}, _RESERVED, "use the fields max_context and max_batch")
        if self.draft_tokens and _ALGORITHM in self.engine_args:
            raise ValueError(
                f"SglangEngineConfig.engine_args selects {self.engine_args[_ALGORITHM]}, but draft_tokens="
                f"{self.draft_tokens} selects turntree's drafts; set draft_tokens=0 to use "
                f"{self.engine_args[_ALGORITHM]}"
            )

    @property
    def speculates(self) -> bool:
        """Whether turntree or SGLang verifies drafts."""
        return bool(self.draft_tokens or self.engine_args.get(_ALGORITHM))

    def to_engine_args(self, model: str) -> dict[str, Any]:
        """Return the arguments of ``sglang.Engine``."""
        arguments: dict[str, Any] = {
            "model_path": model,
            "dtype": self.dtype,
            "context_length": self.max_context + KEPT,
            "max_running_requests": self.max_batch,
            "skip_tokenizer_init": True,
            "log_level": "warning",
            **self.engine_args,
        }
        if self.seed is not None:
            arguments["random_seed"] = self.seed
        if self.draft_tokens:
            arguments[_ALGORITHM] = _NGRAM if self.speculation.replace_ngram else ALGORITHM
            arguments["speculative_num_draft_tokens"] = self.draft_tokens
        return arguments

    def to_variable(self) -> str:
        """Return the value of the environment variable that the draft worker reads."""
        return json.dumps(self.speculation.to_mapping())
