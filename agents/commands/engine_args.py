"""``--engine-args``, of every command that starts an engine."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from turntree.agents.engines.engine_choice import EngineName

EngineArgsOption = Annotated[
    str | None, typer.Option(metavar="JSON", help="Further arguments of vLLM or SGLang, an object.")
]


def parsed_engine_args(engine: EngineName, text: str | None, *, base_url: str | None = None) -> dict[str, Any]:
    """The engine's further arguments.

    Raises:
        UsageError: If they are no JSON object, or there is nothing that takes them.
    """
    from turntree.agents.errors import UsageError

    if text is None:
        return {}
    if engine not in (EngineName.VLLM, EngineName.SGLANG):
        raise UsageError(f"--engine-args are of vLLM or SGLang; --engine {engine} has none")
    if base_url is not None:
        raise UsageError("--engine-args are of an engine that is started here; --base-url names one that runs")
    try:
        given = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--engine-args must be a JSON object: {error}") from error
    if not isinstance(given, dict):
        raise UsageError(f"--engine-args must be a JSON object, got {text!r}")
    return given
