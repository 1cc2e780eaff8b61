"""Engines that a command can start, by name. Each engine is imported only when it is chosen."""

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
    LOCAL = "local"  #: PyTorch in this process
    VLLM = "vllm"  #: started here or reached at a URL
    SGLANG = "sglang"  #: started here or reached at a URL
    OPENAI = "openai"  #: any server of chat completions at a URL; text only


class ToolCalls(StrEnum):
    """Which side parses tool calls in a chat server's answer."""

    NATIVE = "native"  #: the server: it receives the tools' schemas and returns calls
    TEXT = "text"  #: the environment: the system message describes the tools, and the policy writes calls as text


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """An engine and its start options."""

    name: EngineName
    model: str
    """Model directory or Hugging Face id."""
    max_batch: int
    """Maximum concurrent requests."""
    max_context: int
    """Maximum tokens of prompt and response."""
    speculate: bool = True
    """Whether to draft turns from earlier turns in the draft store."""
    forest: ForestConfig | None = None
    """Settings of the draft store of an engine started here; ``None`` takes the defaults."""
    device: str = "cpu"
    """Torch device."""
    dtype: str = "auto"
    """Dtype of weights and activations; see ``precision`` for ``auto``."""
    base_url: str | None = None
    """URL of a running server; ``None`` starts the engine."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of vLLM or SGLang, if started here."""

    @property
    def precision(self) -> str:
        """The dtype, with ``auto`` resolved to float32 except for vLLM or SGLang on a GPU.

        On the CPU vLLM's own ``auto`` rounds a float32 model to bfloat16. Rounding errors, which depend on the batch,
        then decide between tokens of nearly equal probability.
        """
        if self.dtype != "auto" or self.base_url is not None:
            return self.dtype
        if self.name not in _SERVED:
            return "float32"
        import torch

        # device_count asks only the driver; it does not initialise a device in this process.
        return "auto" if torch.cuda.device_count() else "float32"


def parsed_engine_args(engine: EngineName, text: str | None, *, base_url: str | None = None) -> dict[str, Any]:
    """Parse ``--engine-args``.

    Raises:
        UsageError: If the text is not a JSON object, or the engine takes no arguments.
    """
    from turntree.agents.errors import UsageError
    from turntree.envs.data.json_files import parse_json

    if text is None:
        return {}
    if engine not in _SERVED:
        raise UsageError(f"--engine-args apply to vLLM or SGLang; --engine {engine} takes none")
    if base_url is not None:
        raise UsageError("--engine-args apply to an engine started here; --base-url names a running one")
    try:
        given = parse_json(text)
    except ValueError as error:
        raise UsageError(f"--engine-args must be a JSON object: {error}") from error
    if not isinstance(given, dict):
        raise UsageError(f"--engine-args must be a JSON object, got {text!r:.80}")
    return given


def open_policy(choice: EngineChoice) -> AbstractAsyncContextManager[Engine | ChatServer]:
    """Return the chosen engine or chat server as a context manager, as ``open_engine`` does.

    Raises:
        UsageError: If a chat server has no URL.
        ServerRefused: On entry, if the chat server does not answer.
    """
    if choice.name is not EngineName.OPENAI:
        return open_engine(choice)
    from turntree.agents.engines.chat_server import ChatServer
    from turntree.agents.errors import UsageError

    if choice.base_url is None:
        raise UsageError(f"--engine {choice.name} needs --base-url, for example http://localhost:8000/v1")
    return ChatServer(choice.base_url, model=choice.model or None)


def open_engine(choice: EngineChoice) -> AbstractAsyncContextManager[Engine]:
    """Return the chosen engine as a context manager that starts and stops it.

    Raises:
        UsageError: If a URL was given for an engine that has no server, or if the engine returns only text.
        MissingExtra: On entry, if the engine's packages are not installed.
        ValueError: On entry, if the model cannot be run with these options.
    """
    from turntree.agents.errors import UsageError

    if choice.name not in _OPENERS:
        raise UsageError(f"--engine {choice.name} returns only text, expected one of {', '.join(_OPENERS)}")
    if choice.base_url is not None and choice.name not in _SERVED:
        raise UsageError(f"--base-url goes with --engine {' or '.join(_SERVED)}, got --engine {choice.name}")
    return _OPENERS[choice.name](choice)


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


_SERVED = (EngineName.VLLM, EngineName.SGLANG)  #: engines that can run as servers
_OPENERS: dict[EngineName, Callable[[EngineChoice], AbstractAsyncContextManager[Engine]]] = {
    EngineName.LOCAL: _open_local,
    EngineName.VLLM: _open_vllm,
    EngineName.SGLANG: _open_sglang,
}
