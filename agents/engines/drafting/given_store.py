"""A store of another run that an engine is to begin with, checked before the engine starts."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from turntree.agents.errors import UsageError
from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.errors import ForestError
from turntree.spec_tree.store.snapshot import read_imported


def given_store(path: str | PathLike[str], tokenizer: str) -> str:
    """The value for ``ForestConfig.import_turns``.

    Args:
        path: A file of a store, or a folder with such files: a run, or its checkpoints.
        tokenizer: Hash of the policy's tokenizer; empty where it is not known.

    Returns:
        The path from the root on, for processes that run elsewhere.

    Raises:
        UsageError: If there is no store there, or it is of another tokenizer.
    """
    try:
        place = Path(path).expanduser().absolute()
        read_imported(place, ForestConfig(tokenizer=tokenizer))
    except (OSError, RuntimeError, ForestError) as error:  # RuntimeError: of a user's home that is not known
        raise UsageError(f"the store {path} cannot be drafted from: {error}") from error
    return str(place)
