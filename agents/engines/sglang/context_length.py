"""Conversion of ``max_context`` to SGLang's ``context_length``.

SGLang 0.5.12 with a ``context_length`` of C refuses prompts of C - 6 or more tokens, and ends a turn at C - 2 tokens in
all. C is therefore ``max_context + KEPT``. The extra positions are never filled: turntree requests at most
``max_context`` tokens, and drafts end where the turn does. C may then exceed the model's own limit, which SGLang allows
only if an environment variable is set; ``allowance`` checks ``max_context`` against that limit itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEPT = 6  #: Extra positions: a prompt of ``max_context - 1`` tokens must be below ``C - 6``.
#: Environment variable that lets ``context_length`` exceed the model's limit.
ALLOWANCE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


def allowance(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables in which SGLang accepts ``context_length``.

    Args:
        arguments: Server arguments, ``context_length`` including ``KEPT``.

    Raises:
        ValueError: If the model's context is shorter than ``max_context``.
    """
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
