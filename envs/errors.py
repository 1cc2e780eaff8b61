"""The errors that environments raise on purpose.

A ``ToolError`` is reported to the model and the episode continues. All other errors are meant for the person who
writes, configures or runs the environment.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Collection
from importlib.metadata import distributions
from typing import Any
from urllib.parse import unquote, urlsplit

import gymnasium


def pip_install(packages: str) -> str:
    """Return the pip command for the running interpreter; a bare ``pip`` could belong to another interpreter."""
    return f"{sys.executable} -m pip install {packages}"


def install_command(extra: str) -> str:
    """Return the command that installs an extra of turntree from the place that turntree was installed from."""
    # turntree is not on PyPI, so its bare name would install nothing or somebody else's package.
    name = f"turntree[{extra}]" if extra else "turntree"
    # The first metadata found may be an egg-info of a checkout on sys.path, which has no origin; so search them all.
    texts = (distribution.read_text("direct_url.json") for distribution in distributions(name="turntree"))
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
    """``restore`` got bytes that are not a snapshot of this class."""


class DataError(EnvError, ValueError):
    """A task file is missing, or one of its rows is malformed."""


class MissingExtra(EnvError, ImportError):
    """An optional library is needed but not installed."""


class ConformanceError(EnvError, AssertionError):
    """An environment breaks a rule that all environments must keep."""


class Escape(EnvError):
    """An environment's code raised something that is not an ``Exception``, such as ``SystemExit``."""


class SandboxError(EnvError):
    """The sandbox itself failed. This says nothing about the code that it ran."""


class SandboxTimeout(SandboxError, TimeoutError):
    """The sandbox itself did not answer in time."""


class UngradedAnswer(EnvError):
    """The verifier could not decide whether the answer is right, so the episode is not scored."""


def nearest_hint(name: object, known: Collection[str], otherwise: str, *, cutoff: float = 0.6) -> str:
    """Suggest the most similar known name, or list the known names.

    Args:
        otherwise: Text before the list, for example ``known are``; an empty list is written as ``none``.
        cutoff: Similarity that counts as near, from 0 to 1, see ``difflib.get_close_matches``.

    >>> nearest_hint("gms8k", ["gsm8k", "math"], "known are"), nearest_hint("x", ["gsm8k", "math"], "known are")
    ("did you mean 'gsm8k'?", 'known are: gsm8k, math')
    """
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}?" if near else f"{otherwise}: {', '.join(known) or 'none'}"
