"""A customer played by a language model, from plain values: the argument ``customer`` of a service's environment."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from turntree.agents.loop.engine_customer import EngineCustomer
from turntree.agents.loop.speaker_settings import SpeakerSettings, opened_speaker, read_settings


def with_customer(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an environment, with the customer that their ``customer`` describes, if it is a mapping.

    Raises:
        ValueError: If a key is unknown or a value out of range.
    """
    settings = customer_settings(arguments)
    return dict(arguments) if settings is None else {**arguments, "customer": opened(settings)}


def customer_settings(arguments: Mapping[str, Any]) -> SpeakerSettings | None:
    """What the ``customer`` of an environment's arguments describes; ``None`` if that is no mapping.

    Raises:
        ValueError: If a key is unknown or a value out of range.
    """
    described = arguments.get("customer")
    if not isinstance(described, Mapping):
        return None
    return read_settings(SpeakerSettings, described, "customer")


@functools.cache
def opened(settings: SpeakerSettings) -> EngineCustomer:
    """The customer, its engine started; one for each process and settings, closed with the process.

    Raises:
        ServerRefused: If its server does not answer.
        MissingExtra: If the engine's packages are not installed.
    """
    speaker, thread = opened_speaker(settings)
    return EngineCustomer(speaker, thread, sampling=settings.sampling, seed=settings.seed, seconds=settings.seconds)
