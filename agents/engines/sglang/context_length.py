"""Conversion of ``max_context`` to SGLang's ``context_length``, whose last places SGLang reserves.

With ``context_length`` C, SGLang 0.5.12 refuses prompts of C - 6 tokens and more, and ends a turn at C - 2
tokens in all. So that ``max_context`` keeps its meaning, C is larger by ``KEPT``. Those places are never filled:
turntree requests no more than ``max_context``, and drafts end where the turn does. C may then exceed the model's own
limit, which SGLang allows only if an environment variable is set; turntree has checked ``max_context`` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEPT = 6
"""Reserved places of the context: ``max_context - 1`` tokens of prompt must lie below ``C - 6``."""
ALLOWANCE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
"""Environment variable that lets ``context_length`` exceed the model's limit."""


def allowance(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The environment in which SGLang takes ``context_length``; empty if the model has as many places.

    Args:
        arguments: Server arguments, with ``KEPT`` places in ``context_length``.

    Raises:
        ValueError: If the model's limit is less than prompt and response.
    """
    limit, wanted = _limit(arguments), int(arguments["context_length"]) - KEPT
    if wanted > limit:
        raise ValueError(
            f"max_context is {wanted}, and the model {arguments['model_path']} has a context of {limit} tokens; lower "
            "max_context, or extend the model by engine_args={'json_model_override_args': ...}"
        )
    return {ALLOWANCE: "1"} if wanted + KEPT > limit else {}


def _limit(arguments: Mapping[str, Any]) -> int:
    from sglang.srt.configs.model_config import ModelConfig

    config = ModelConfig(
        arguments["model_path"],
        trust_remote_code=arguments.get("trust_remote_code", False),
        revision=arguments.get("revision"),
        model_override_args=arguments.get("json_model_override_args", "{}"),
    )
    return int(config.context_len)
