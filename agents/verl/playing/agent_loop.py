"""verl's agent loop ``turntree_env``: plays a turntree environment by turntree's episode loop.

It works with verl's own manager and any rollout backend. ``manager`` plays the
same episodes with less traffic, if the backend is turntree's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, register

from turntree.agents.verl.episodes.dataset import AGENT_NAME
from turntree.agents.verl.episodes.output import EpisodeOutput
from turntree.agents.verl.playing.engine import VerlEngine
from turntree.agents.verl.playing.player import EpisodePlayer


@register(AGENT_NAME)
class EnvAgentLoop(AgentLoopBase):
    """One episode. verl creates an object per episode; shared parts are created once per process.

    Args:
        kwargs: Other arguments that verl gives to loops; unused.
    """

    def __init__(self, trainer_config: Any, server_manager: Any, tokenizer: Any, **kwargs: Any) -> None:
        # Not calling super().__init__(): it builds verl's own tokenisation, again for every episode.
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.server_manager = server_manager
        self.tokenizer = tokenizer

    async def run(  # type: ignore[override]  # verl's manager takes a list as well
        self, sampling_params: dict[str, Any], **row: Any
    ) -> EpisodeOutput | list[EpisodeOutput]:
        """Play the episode of ``row``; see ``EpisodePlayer.play``. Of a program with several dialogues all rows."""
        backend = self.rollout_config.name
        player = _player(_ById(self.tokenizer), _ById(self.rollout_config))
        output = await player.play(sampling_params, row, lambda: VerlEngine(self.server_manager, backend=backend))
        return output.rows if output.others else output


class _ById:
    """An object as a cache key; the cache keeps it alive, so its identity stays its own."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and self.value is other.value


@lru_cache(maxsize=2)
def _player(tokenizer: _ById, rollout_config: _ById) -> EpisodePlayer:
    return EpisodePlayer(rollout_config.value, tokenizer.value)
