"""Prefix trees of what was said before at each dialogue state, as a model-free draft."""

from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.draft import DraftBatch
from turntree.spec_tree.errors import DamagedForest, ForestError, UnknownTurn
from turntree.spec_tree.forest import SpecForest
from turntree.spec_tree.prefix_tree import TreeNode
from turntree.spec_tree.state import DialogueState
from turntree.spec_tree.stats import ForestStats

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
