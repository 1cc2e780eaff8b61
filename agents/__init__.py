"""Rollouts, engines, episodes, scoring and evaluation of LLM agents."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turntree.agents.engines.monitors import Monitors
    from turntree.agents.engines.protocol import Completion, DraftStats, Engine, FinishReason, Sampling, TurnRequest
    from turntree.agents.engines.scripted import ScriptedEngine
    from turntree.agents.episodes.episode import Episode, StopReason, Turn
    from turntree.agents.episodes.record import EpisodeWriter, read_episodes, read_records
    from turntree.agents.episodes.token_view import TokenView
    from turntree.agents.evaluation.evaluate import Evaluation, evaluate
    from turntree.agents.loop.renderer import Renderer
    from turntree.agents.loop.rollout import rollout
    from turntree.agents.scoring.judging import judge_episodes
    from turntree.agents.scoring.policy_sample import policy_sample
    from turntree.agents.scoring.scorer import Scored, Scorer
    from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode
    from turntree.agents.turn_drafts.prefix_reuse import PrefixReuse

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
    "TurnRequest",
    "evaluate",
    "judge_episodes",
    "policy_sample",
    "read_episodes",
    "read_records",
    "rollout",
]

#: exported name -> module of this package
_MODULES = {
    "Completion": "engines.protocol",
    "DraftStats": "engines.protocol",
    "Engine": "engines.protocol",
    "Episode": "episodes.episode",
    "EpisodeWriter": "episodes.record",
    "Evaluation": "evaluation.evaluate",
    "FinishReason": "engines.protocol",
    "Monitors": "engines.monitors",
    "PrefixReuse": "turn_drafts.prefix_reuse",
    "Renderer": "loop.renderer",
    "ReuseConfig": "turn_drafts.config",
    "ReuseMode": "turn_drafts.config",
    "Sampling": "engines.protocol",
    "Scored": "scoring.scorer",
    "Scorer": "scoring.scorer",
    "ScriptedEngine": "engines.scripted",
    "StopReason": "episodes.episode",
    "TokenView": "episodes.token_view",
    "Turn": "episodes.episode",
    "TurnRequest": "engines.protocol",
    "evaluate": "evaluation.evaluate",
    "judge_episodes": "scoring.judging",
    "policy_sample": "scoring.policy_sample",
    "read_episodes": "episodes.record",
    "read_records": "episodes.record",
    "rollout": "loop.rollout",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
