"""A customer played by a language model, from plain values: the argument ``customer`` of a service's environment."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from typing import Any

from turntree.agents.engines.chat_server import ChatServer
from turntree.agents.engines.engine_choice import EngineChoice, EngineName, open_policy
from turntree.agents.engines.event_thread import EventThread
from turntree.agents.engines.protocol import Sampling
from turntree.agents.loop.engine_customer import EngineCustomer, EngineSpeaker, ServerSpeaker, Speaker
from turntree.agents.loop.renderer import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomerSettings:
    """The model that plays the customer, and how it speaks."""

    engine: str = "openai"
    """A server of chat completions (``openai``), or an engine: ``local``, ``vllm``, ``sglang``."""
    model: str = ""
    """Model directory or Hugging Face id; of a server the name, empty for its only one."""
    base_url: str | None = None
    """URL of the server; an engine without one is started in each process that plays."""
    seed: int = 0
    """Seed of all its messages."""
    temperature: float = 0.7
    """Its sampling temperature."""
    max_tokens: int = 256
    """Most tokens of a message."""
    max_context: int = 8192
    """Most tokens of its prompt and message together."""
    max_batch: int = 16
    """Messages sampled at the same time."""
    seconds: float = 120.0
    """Deadline of a message."""

    def __post_init__(self) -> None:
        if self.engine not in tuple(EngineName):
            raise ValueError(f"engine must be one of {', '.join(EngineName)}, got {self.engine!r}")
        if self.engine == EngineName.OPENAI and not self.base_url:
            raise ValueError("engine=openai needs base_url, for example http://localhost:8000/v1")
        if self.engine != EngineName.OPENAI and not self.model:
            raise ValueError(f"engine={self.engine} needs model, a directory or a Hugging Face id")
        if self.engine == EngineName.LOCAL and self.base_url:
            raise ValueError("engine=local has no server; leave base_url out")
        for name in ("max_tokens", "max_context", "max_batch", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)!r}")
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")


def with_customer(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an environment, with the customer that their ``customer`` describes, if it is a mapping.

    Raises:
        ValueError: If a key is unknown or a value out of range.
    """
    settings = customer_settings(arguments)
    return dict(arguments) if settings is None else {**arguments, "customer": opened(settings)}


def customer_settings(arguments: Mapping[str, Any]) -> CustomerSettings | None:
    """What the ``customer`` of an environment's arguments describes; ``None`` if that is no mapping.

    Raises:
        ValueError: If a key is unknown or a value out of range.
    """
    described = arguments.get("customer")
    if not isinstance(described, Mapping):
        return None
    known = [field.name for field in fields(CustomerSettings)]
    for key in described:
        if key not in known:
            raise ValueError(f"customer takes the keys {', '.join(known)}, got {key!r}")
    return CustomerSettings(**described)


@functools.cache
def opened(settings: CustomerSettings) -> EngineCustomer:
    """The customer, its engine started; one for each process and settings, closed with the process.

    Raises:
        ServerRefused: If its server does not answer.
        MissingExtra: If the engine's packages are not installed.
    """
    thread, stack = EventThread("turntree-customer"), AsyncExitStack()

    def close() -> None:
        if not thread.closed:
            thread.call(stack.aclose())
            thread.close()

    try:
        speaker = thread.call(_speaker(settings, stack))
    except BaseException:
        thread.close()
        raise
    atexit.register(close)
    sampling = Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens)
    return EngineCustomer(speaker, thread, sampling=sampling, seed=settings.seed, seconds=settings.seconds)


async def _speaker(settings: CustomerSettings, stack: AsyncExitStack) -> Speaker:
    choice = EngineChoice(
        name=EngineName(settings.engine),
        model=settings.model,
        max_batch=settings.max_batch,
        max_context=settings.max_context,
        base_url=settings.base_url,
    )
    engine = await stack.enter_async_context(open_policy(choice))
    if isinstance(engine, ChatServer):
        return ServerSpeaker(engine)
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(settings.model)
    return EngineSpeaker(engine, Renderer(tokenizer))
