"""Engines that a command can start, by name. Each is imported only when it is chosen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turntree.agents.engines.chat_server import ChatServer
    from turntree.agents.engines.protocol import Engine
    from turntree.spec_tree import ForestConfig


class EngineName(StrEnum):
    """The program that runs the model."""

    LOCAL = "local"
    """PyTorch in this process."""
    VLLM = "vllm"
    """vLLM, started here or reached at a URL."""
    SGLANG = "sglang"
    """SGLang, started here or reached at a URL."""
    OPENAI = "openai"
    """Any server of chat completions, reached at a URL; text only."""


class ToolCalls(StrEnum):
    """The side that parses tool calls in a chat server's answer."""

    NATIVE = "native"
    """The server: it is given the tools' schemas, and answers with calls."""
    TEXT = "text"
    """The environment: the tools are described in the system message, and the policy writes calls as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """An engine and the options that it is started with."""

    name: EngineName
    """Which engine."""
    model: str
    """Model directory or Hugging Face id."""
    max_batch: int
    """Requests that run at the same time."""
    max_context: int
    """Most tokens of prompt and response."""
    speculate: bool = True
    """Whether turns are drafted from earlier ones."""
    forest: ForestConfig | None = None
    """Settings of the store that they are drafted from, of an engine that is started here; ``None``: the defaults."""
    device: str = "cpu"
    """Torch device."""
    dtype: str = "auto"
    """Dtype of weights and activations; see ``precision`` for ``auto``."""
    base_url: str | None = None
    """URL of a server that runs already; ``None`` starts the engine."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM or SGLang, if they are started here."""

    @property
    def precision(self) -> str:
        """``dtype``, with ``auto`` resolved: the model's own (``auto``) with vLLM or SGLang on a GPU, else float32.

        On the CPU vLLM's own ``auto`` rounds a model of float32 to bfloat16, in which near ties fall otherwise when
        tokens are computed in other batches.
        """
        if self.dtype != "auto" or self.base_url is not None:
            return self.dtype
        if self.name not in _SERVED:
            return "float32"
        import torch

        return "auto" if torch.cuda.device_count() else "float32"  # asks the driver, and initialises no device


def parsed_engine_args(engine: EngineName, text: str | None, *, base_url: str | None = None) -> dict[str, Any]:
    """The engine's further arguments.

    Raises:
        UsageError: If they are no JSON object, or there is nothing that takes them.
    """
    from turntree.agents.errors import UsageError
    from turntree.envs.data.json_files import parse_json

    if text is None:
        return {}
    if engine not in _SERVED:
        raise UsageError(f"--engine-args are of vLLM or SGLang; --engine {engine} has none")
    if base_url is not None:
        raise UsageError("--engine-args are of an engine that is started here; --base-url names one that runs")
    try:
        given = parse_json(text)
    except ValueError as error:
        raise UsageError(f"--engine-args must be a JSON object: {error}") from error
    if not isinstance(given, dict):
        raise UsageError(f"--engine-args must be a JSON object, got {text!r:.80}")
    return given


def open_policy(choice: EngineChoice) -> AbstractAsyncContextManager[Engine | ChatServer]:
    """The chosen engine or chat server, as ``open_engine``.

    Raises:
        UsageError: If a chat server has no URL.
        ServerRefused: On entry, if it does not answer.
    """
    if choice.name is not EngineName.OPENAI:
        return open_engine(choice)
    from turntree.agents.engines.chat_server import ChatServer

    return ChatServer(_needed_url(choice), model=choice.model or None)


def open_engine(choice: EngineChoice) -> AbstractAsyncContextManager[Engine]:
    """The chosen engine, started on entry and stopped on exit.

    Raises:
        UsageError: If the engine has no servers and a URL was given, or if it gives text only.
        MissingExtra: On entry, if the engine's packages are not installed.
        ValueError: On entry, if the model cannot be run with these options.
    """
    from turntree.agents.errors import UsageError

    if choice.name not in _OPENERS:
        raise UsageError(f"--engine {choice.name} gives text alone, expected one of {', '.join(_OPENERS)}")
    if choice.base_url is not None and choice.name not in _SERVED:
        raise UsageError(f"--base-url goes with --engine {' or '.join(_SERVED)}, got --engine {choice.name}")
    return _OPENERS[choice.name](choice)


def _needed_url(choice: EngineChoice) -> str:
    if choice.base_url is None:
        from turntree.agents.errors import UsageError

        raise UsageError(f"--engine {choice.name} needs --base-url, for example http://localhost:8000/v1")
    return choice.base_url


@asynccontextmanager
async def _open_local(choice: EngineChoice) -> AsyncIterator[Engine]:
    try:
        from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
        from turntree.envs.data.hub import hub_asked_once
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("turntree"):
            raise
        from turntree.agents.errors import MissingExtra

        raise MissingExtra("the local engine", "local") from error
    config = LocalEngineConfig(
        max_batch=choice.max_batch,
        max_context=choice.max_context,
        dtype=choice.precision,
        device=choice.device,
        speculation=Speculation() if choice.speculate else None,
    )
    with nullcontext() if Path(choice.model).is_dir() else hub_asked_once():
        opened = LocalEngine.from_pretrained(choice.model, config=config, forest=choice.forest)
    with opened as engine:
        yield engine


@asynccontextmanager
async def _open_vllm(choice: EngineChoice) -> AsyncIterator[Engine]:
    if choice.base_url is not None:
        from turntree.agents.engines.vllm.server import VllmServer

        with VllmServer(choice.base_url, speculates=choice.speculate) as server:
            yield server
        return
    from turntree.agents.engines.vllm.config import VllmEngineConfig
    from turntree.agents.engines.vllm.engine import VllmEngine
    from turntree.agents.engines.vllm.settings import speculative_config, with_forest

    engine_args = dict(choice.engine_args)
    if choice.forest is not None:
        engine_args["additional_config"] = with_forest(engine_args.get("additional_config"), choice.forest)
    config = VllmEngineConfig(
        max_batch=choice.max_batch,
        max_context=choice.max_context,
        dtype=choice.precision,
        speculative_config=speculative_config() if choice.speculate else None,
        engine_args=engine_args,
    )
    with VllmEngine(choice.model, config=config) as engine:
        yield engine


@asynccontextmanager
async def _open_sglang(choice: EngineChoice) -> AsyncIterator[Engine]:
    if choice.base_url is not None:
        from turntree.agents.engines.sglang.server import SglangServer

        with SglangServer(choice.base_url, max_context=choice.max_context, speculates=choice.speculate) as server:
            yield server
        return
    from turntree.agents.engines.sglang.config import SglangEngineConfig
    from turntree.agents.engines.sglang.engine import SglangEngine
    from turntree.agents.engines.sglang.settings import SglangSettings

    config = SglangEngineConfig(
        max_batch=choice.max_batch,
        max_context=choice.max_context,
        dtype=choice.precision,
        draft_tokens=8 if choice.speculate else 0,
        speculation=SglangSettings() if choice.forest is None else SglangSettings(forest=choice.forest),
        engine_args=choice.engine_args,
    )
    with SglangEngine(choice.model, config=config) as engine:
        yield engine


_SERVED = (EngineName.VLLM, EngineName.SGLANG)
"""Engines that can run as servers."""
_OPENERS: dict[EngineName, Callable[[EngineChoice], AbstractAsyncContextManager[Engine]]] = {
    EngineName.LOCAL: _open_local,
    EngineName.VLLM: _open_vllm,
    EngineName.SGLANG: _open_sglang,
}
"""The function that opens each engine."""
