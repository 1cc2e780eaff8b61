"""Settings of an SGLang engine in this process, and their conversion to SGLang's own arguments."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from turntree.agents.engines.served.settings import ServedConfig
from turntree.agents.engines.sglang.context_length import KEPT
from turntree.agents.engines.sglang.settings import ALGORITHM, SglangSettings

_OURS = ("model_path", "context_length", "max_running_requests", "skip_tokenizer_init")
_ALGORITHM = "speculative_algorithm"
_NGRAM = "NGRAM"


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangEngineConfig(ServedConfig):
    """Size and behaviour of one engine."""

    draft_tokens: int = 0
    """Most tokens of one request in one pass, the last sampled one included; 0 decodes plainly."""
    speculation: SglangSettings = field(default_factory=SglangSettings)
    """Settings of turntree's draft worker."""

    def __post_init__(self) -> None:
        self._check({"draft_tokens": 0}, _OURS, "the fields max_context and max_batch say the same")
        if self.draft_tokens and _ALGORITHM in self.engine_args:
            raise ValueError(
                f"SglangEngineConfig.engine_args asks for {self.engine_args[_ALGORITHM]}, and draft_tokens="
                f"{self.draft_tokens} for turntree's drafts; set draft_tokens=0 to use the other alone"
            )

    @property
    def speculates(self) -> bool:
        """Whether drafts are verified, from turntree or SGLang."""
        return bool(self.draft_tokens or self.engine_args.get(_ALGORITHM))

    def to_engine_args(self, model: str) -> dict[str, Any]:
        """Arguments of ``sglang.Engine``; ``model`` is a directory or a Hugging Face id."""
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
        """Text of the environment variable that the worker reads."""
        return json.dumps(self.speculation.to_mapping())
