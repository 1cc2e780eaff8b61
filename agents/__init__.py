"""The loop of the project: policy text in, episodes out."""

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
