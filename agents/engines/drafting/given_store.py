from __future__ import annotations

from os import PathLike
from pathlib import Path

from turntree.agents.errors import UsageError
from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.errors import ForestError
from turntree.spec_tree.store.snapshot import read_imported


def given_store(path: str | PathLike[str], tokenizer: str) -> str:
    """Check the store of another run before an engine starts, and return the value for ``import_turns``.

    Args:
        path: A file of a store, or a folder with such files: a run, or its checkpoints.
        tokenizer: Hash of the policy's tokenizer; empty if unknown.

    Returns:
        The absolute path, for processes with another working directory.

    Raises:
        UsageError: If there is no store, or it is from another tokenizer.
    """
    try:
        place = Path(path).expanduser().absolute()
        read_imported(place, ForestConfig(tokenizer=tokenizer))
    except (OSError, RuntimeError, ForestError) as error:  # RuntimeError: of a user's home that is not known
        raise UsageError(f"the store {path} cannot be drafted from: {error}") from error
    return str(place)
