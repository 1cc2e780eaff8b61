"""The loop of the project: policy text in, episodes out.

Names are loaded when they are first asked for: the command prints its help without the environments.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turntree.agents.engines.protocol import Completion, DraftStats, Engine, FinishReason, Sampling
    from turntree.agents.engines.scripted import ScriptedEngine
    from turntree.agents.episode import Episode, StopReason, Turn
    from turntree.agents.evaluate import Evaluation, evaluate
    from turntree.agents.judging import judge_episodes
    from turntree.agents.monitors import Monitors
    from turntree.agents.policy_sample import policy_sample
    from turntree.agents.prefix_reuse import PrefixReuse
    from turntree.agents.record import EpisodeWriter, read_episodes, read_records
    from turntree.agents.renderer import Renderer
    from turntree.agents.reuse_config import ReuseConfig, ReuseMode
    from turntree.agents.rollout import rollout
    from turntree.agents.scorer import Scored, Scorer
    from turntree.agents.token_view import TokenView

__all__ = [
    "Completion",
    "DraftStats",
    "Engine",
    "Episode",
    "EpisodeWriter",
    "Evaluation",
    "FinishReason",
    "Monitors",
    "PrefixReuse",
    "Renderer",
    "ReuseConfig",
    "ReuseMode",
    "Sampling",
    "Scored",
    "Scorer",
    "ScriptedEngine",
    "StopReason",
    "TokenView",
    "Turn",
    "evaluate",
    "judge_episodes",
    "policy_sample",
    "read_episodes",
    "read_records",
    "rollout",
]

_MODULES = {
    "Completion": "engines.protocol",
    "DraftStats": "engines.protocol",
    "Engine": "engines.protocol",
    "Episode": "episode",
    "EpisodeWriter": "record",
    "Evaluation": "evaluate",
    "FinishReason": "engines.protocol",
    "Monitors": "monitors",
    "PrefixReuse": "prefix_reuse",
    "Renderer": "renderer",
    "ReuseConfig": "reuse_config",
    "ReuseMode": "reuse_config",
    "Sampling": "engines.protocol",
    "Scored": "scorer",
    "Scorer": "scorer",
    "ScriptedEngine": "engines.scripted",
    "StopReason": "episode",
    "TokenView": "token_view",
    "Turn": "episode",
    "evaluate": "evaluate",
    "judge_episodes": "judging",
    "policy_sample": "policy_sample",
    "read_episodes": "record",
    "read_records": "record",
    "rollout": "rollout",
}
"""Names and the modules of this package that they stand in."""


class _Package(ModuleType):
    """Some functions are called like the module that they stand in: the function goes first."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
