"""A model-free drafter: prefix trees of the turns sampled earlier at each dialogue state.

``SpecForest`` needs numba (the extra ``tree``) and is loaded on first use; the other names need only numpy.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.draft import DraftBatch
from turntree.spec_tree.errors import DamagedForest, ForestError, UnknownTurn
from turntree.spec_tree.state import DialogueState
from turntree.spec_tree.stats import ForestStats
from turntree.spec_tree.store.prefix_tree import TreeNode

if TYPE_CHECKING:
    from turntree.spec_tree.store.forest import SpecForest

__all__ = [
    "DamagedForest",
    "DialogueState",
    "DraftBatch",
    "ForestConfig",
    "ForestError",
    "ForestStats",
    "SpecForest",
    "TreeNode",
    "UnknownTurn",
]

_COMPILED = {"SpecForest": "turntree.spec_tree.store.forest"}  #: names that need numba, and their modules


def __getattr__(name: str) -> Any:
    if name not in _COMPILED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_COMPILED[name])
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("numba", "llvmlite"):
            raise
        raise ImportError(f"{name} needs numba: {sys.executable} -m pip install numba") from error
    return getattr(module, name)
