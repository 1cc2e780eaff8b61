"""The errors that environments raise on purpose.

A ``ToolError`` is reported to the model and the episode continues. All other errors are meant for the person who
writes, configures or runs the environment.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import distributions
from typing import Any
from urllib.parse import unquote, urlsplit

import gymnasium


def pip_install(packages: str) -> str:
    return f"{sys.executable} -m pip install {packages}"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to turntree, from the source that turntree was installed from."""
    # turntree is on no index: its name alone would find nothing there, or something else.
    name = f"turntree[{extra}]" if extra else "turntree"
    # A checkout in sys.path may hold the egg-info of a build, which knows no origin and comes first.
    texts = (found.read_text("direct_url.json") for found in distributions(name="turntree"))
    origin: dict[str, Any] = next((json.loads(text) for text in texts if text), {})
    url = str(origin.get("url", ""))
    if "dir_info" in origin:
        editable = "-e " if origin["dir_info"].get("editable") else ""
        return pip_install(f'{editable}"{unquote(urlsplit(url).path)}{name.removeprefix("turntree")}"')
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return pip_install(f'"{name} @ {url}"' if url else f'"{name}"')


class EnvError(Exception):
    """Base class of all errors of ``turntree.envs``."""


class UnknownEnvironment(EnvError, LookupError):
    """No environment is registered under this id."""


class UnknownParser(EnvError, LookupError):
    """There is no tool-call format of this name."""


class ToolDefinitionError(EnvError, TypeError):
    """A function cannot become a tool: a type hint or a line of its docstring is missing."""


class ToolError(EnvError):
    """The model used a tool wrongly; the message is returned to the model in a tool message."""


class OptionsError(EnvError, TypeError):
    """The options of ``reset`` have an unknown key or a value of the wrong type."""


class TaskIndexError(EnvError, IndexError):
    """The environment has no task with this index."""


class ResetNeeded(EnvError, gymnasium.error.ResetNeeded):
    """``step`` was called before ``reset`` or after the end of the episode."""


class SnapshotError(EnvError, ValueError):
    """``restore`` got something that is no snapshot of this class."""


class DataError(EnvError, ValueError):
    """A task file is missing, or one of its rows is malformed."""


class MissingExtra(EnvError, ImportError):
    """An optional library is needed but not installed."""


class ConformanceError(EnvError, AssertionError):
    """An environment breaks a rule that all environments must keep."""


class Escape(EnvError):
    """An environment's code raised something that is not an ``Exception``, such as ``SystemExit``."""


class SandboxError(EnvError):
    """The sandbox itself failed, which is no verdict on the code that it ran."""


class SandboxTimeout(SandboxError, TimeoutError):
    """The sandbox itself did not answer in time."""


class UngradedAnswer(EnvError):
    """The verifier could decide neither right nor wrong, so the episode has no verdict."""
