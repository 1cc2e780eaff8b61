"""The errors that environments raise deliberately.

A ``ToolError`` is reported to the model and the episode goes on; all others are
meant for whoever writes, configures or drives the environment.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import distributions
from typing import Any
from urllib.parse import unquote, urlsplit

import gymnasium


def pip_install(packages: str) -> str:
    """The command that installs into the environment that runs; another's pip may come first on the PATH."""
    return f"{sys.executable} -m pip install {packages}"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to turntree, from where turntree itself was installed.

    Args:
        extra: One of pyproject's; empty for turntree without any.
    """
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
    """Base of all errors of this package."""


class UnknownEnvironment(EnvError, LookupError):
    """No environment is registered under the id."""


class UnknownParser(EnvError, LookupError):
    """No tool-call format has the name."""


class ToolDefinitionError(EnvError, TypeError):
    """A function cannot be made a tool: a type hint or a line of its docstring is missing."""


class ToolError(EnvError):
    """The model used a tool wrongly; the text is returned to it in a tool message."""


class OptionsError(EnvError, TypeError):
    """The options of ``reset`` have an unknown key or a value of the wrong type."""


class TaskIndexError(EnvError, IndexError):
    """The environment has no task with this index."""


class ResetNeeded(EnvError, gymnasium.error.ResetNeeded):
    """``step`` was called before ``reset`` or after the episode had ended."""


class SnapshotError(EnvError, ValueError):
    """The bytes given to ``restore`` were not taken from an environment of this class."""


class DataError(EnvError, ValueError):
    """A file of tasks is missing, or one of its rows is malformed."""


class MissingExtra(EnvError, ImportError):
    """An optional library is needed and not installed."""


class ConformanceError(EnvError, AssertionError):
    """An environment breaks a rule that every environment must keep."""


class Escape(EnvError):
    """Code of an environment raised what is no ``Exception``, such as ``SystemExit``; the text names it."""


class SandboxError(EnvError):
    """The sandbox itself failed: no verdict on the code."""


class SandboxTimeout(SandboxError, TimeoutError):
    """The sandbox itself was late."""


class UngradedAnswer(EnvError):
    """The verifier could decide neither right nor wrong; the episode has no verdict."""
