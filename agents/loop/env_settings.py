"""Checks an environment's arguments given as plain values, and builds ``limits`` and ``simulated_user`` from mappings.

A check does not create the environment, because creating one may read a data set.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from turntree.agents.episodes.hints import misfit_by_name, read_settings
from turntree.agents.loop.engine_user import EngineSimulatedUser
from turntree.agents.loop.participants import ParticipantSettings, opened_participant
from turntree.envs import Limits
from turntree.envs.errors import nearest_hint
from turntree.envs.registry import find_creator


def check_settings(env_id: str, settings: Mapping[str, Any]) -> None:
    """Check the names and types of an environment's arguments.

    Raises:
        ValueError: If a name is unknown, a value has the wrong type, or a limit or the simulated user is invalid.
    """
    kinds, any_name = _parameters(env_id)
    for name, value in settings.items():
        if name not in kinds and not any_name:
            raise ValueError(f"unknown argument {name!r}; {nearest_hint(name, sorted(kinds), 'it takes')}")
        if name not in ("limits", "simulated_user") and (problem := misfit_by_name(value, kinds.get(name, ""))):
            raise ValueError(f"{name}: {problem}")
    _limits(settings)
    _simulated_user(settings)


def made_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment's keyword arguments, with limits and simulated user built from their mappings."""
    described = _simulated_user(settings)
    simulated_user = {} if described is None else {"simulated_user": opened(described)}
    return {**settings, **_limits(settings), **simulated_user}


def _limits(settings: Mapping[str, Any]) -> dict[str, Limits]:
    values = settings.get("limits")
    if "limits" not in settings or isinstance(values, Limits):
        return {}
    if not isinstance(values, Mapping | None):
        raise ValueError(f'limits: expected keys with values, such as {{"max_turns": 3}}, got {values!r:.60}')
    return {"limits": read_settings(Limits, values or {}, "limits")}


def _simulated_user(settings: Mapping[str, Any]) -> ParticipantSettings | None:
    described = settings.get("simulated_user")
    if isinstance(described, str | int | float | list):
        raise ValueError(
            f'simulated_user: expected keys with values, such as {{"base_url": "URL"}}, got {described!r:.60}'
        )
    return read_settings(ParticipantSettings, described, "simulated_user") if isinstance(described, Mapping) else None


def _parameters(env_id: str) -> tuple[dict[str, str], bool]:
    # Return the type hint of each argument, and whether any name is accepted. ``**kwargs`` is followed to base classes.
    creator: Any = find_creator(env_id)
    if isinstance(creator, str):
        creator = gymnasium.spec(creator).entry_point
        creator = load_env_creator(creator) if isinstance(creator, str) else creator
    kinds = [kind for kind in inspect.getmro(creator) if "__init__" in vars(kind)] if inspect.isclass(creator) else []
    hints: dict[str, str] = {}
    for function in [vars(kind)["__init__"] for kind in kinds] or [creator]:
        parameters = inspect.signature(function).parameters.values()
        named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"]
        hints = {p.name: _hint_text(p.annotation) for p in named} | hints
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return hints, False
    return hints, True


def _hint_text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


# One engine per process and settings; the engine is closed when the process exits.
@functools.cache
def opened(settings: ParticipantSettings) -> EngineSimulatedUser:
    participant, thread = opened_participant(settings)
    return EngineSimulatedUser(
        participant, thread, sampling=settings.sampling, seed=settings.seed, seconds=settings.seconds
    )
