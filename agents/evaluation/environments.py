"""Environments from command-line arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import Any

from turntree.agents.episodes.episode import Episode
from turntree.agents.errors import UsageError
from turntree.agents.loop.env_settings import check_settings, made_settings
from turntree.envs import Env, make
from turntree.envs.data.json_files import parse_json
from turntree.envs.failure import FailureKind
from turntree.envs.running.containment import contain


def env_arguments(pairs: Sequence[str], *, data: str | None = None, tool_format: str | None = None) -> dict[str, Any]:
    """Return the keyword arguments of an environment.

    Args:
        pairs: ``KEY=VALUE``; a value is read as JSON if it parses as JSON, else as text.
    """
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"expected --env-arg KEY=VALUE, for example max_numbers=3; got {pair!r}")
        try:
            arguments[key] = parse_json(value)
        except ValueError:
            arguments[key] = value
    options = {"data": data, "tool_format": tool_format}
    return arguments | {key: value for key, value in options.items() if value is not None}


def env_maker(env_id: str, arguments: Mapping[str, Any]) -> functools.partial[Env]:
    """Return a function that creates an environment.

    Args:
        arguments: Plain values by name; ``limits`` and ``simulated_user`` are mappings.
    """
    try:
        check_settings(env_id, arguments)
        return functools.partial(make, env_id, **made_settings(arguments))
    except ModuleNotFoundError as error:
        if error.name != env_id.partition(":")[0]:
            raise
        raise UsageError(f"no module {error.name!r} in this folder or among the installed packages") from error
    except ValueError as error:
        raise UsageError(f"{env_id}: {error}") from error


def checked_env(make_env: functools.partial[Env], env_id: str) -> Env:
    try:
        return contain(make_env)
    except TypeError as error:
        # Gymnasium appends where the error was raised and repeats all arguments; drop this part.
        reason = str(error).partition(" was raised from")[0]
        raise UsageError(f"{env_id} does not accept these arguments: {reason}") from error


def env_after(episode: Episode, env: Any, make_env: Callable[[], Any]) -> Any:
    # After a timeout a thread may still run in the old environment, so the next episode gets a new environment.
    if episode.failure_kind is not FailureKind.TIMEOUT:
        return env
    Thread(target=contain, args=(env.close,), daemon=True).start()
    return contain(make_env)
