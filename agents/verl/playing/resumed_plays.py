"""Play episodes during which the weights may be updated."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from turntree.agents.engines.protocol import Engine
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop.episode_driver import env_id_of
from turntree.agents.resuming.interrupted_episodes import InterruptedEpisode, Newest
from turntree.agents.resuming.interrupted_turns import InterruptedTurns, ResumeCounts, versions_of
from turntree.agents.resuming.recorded_env import RecordedEnv, can_be_recorded
from turntree.agents.resuming.resume_config import OnResume
from turntree.spec_tree.rules.seen_seeds import SeenSeeds

logger = logging.getLogger(__name__)

Roll = Callable[[Any, Engine], Awaitable[Episode]]  #: plays an episode in an environment with an engine


class ResumedPlay(NamedTuple):
    episode: Episode
    counts: ResumeCounts
    interrupted: InterruptedEpisode | None  #: needed to re-verify the episode; ``None`` if it cannot be re-verified


class ResumedPlays:
    """Plays the training episodes of one process."""

    def __init__(self, how: OnResume) -> None:
        self.how = how
        self.newest = Newest()
        self.trained = SeenSeeds(bits=1 << 23)  #: seeds of turns that the policy was trained on
        self._refused: set[str] = set()  #: environments for which the warning below was logged

    async def play(self, env: Any, engine: Engine, roll: Roll) -> ResumedPlay:
        """Play an episode to its end, however often the weights are updated meanwhile."""
        if self.how is OnResume.EPISODE and can_be_recorded(env):
            record = RecordedEnv(env)
            interrupted = InterruptedEpisode(engine, record, roll, self.newest, trained=self.trained)
            episode = await interrupted.play()
            record.detach()
            return ResumedPlay(episode, interrupted.counts, interrupted)
        counts = ResumeCounts()
        episode = await roll(env, self.turns(engine, counts))
        versions = {version for turn in episode.turns for version in versions_of(turn.completion)}
        counts.stale_episodes = len(versions) > 1
        self.newest.see(max(versions, default=0))
        if self.how is OnResume.EPISODE and env_id_of(env) not in self._refused:
            self._refused.add(env_id_of(env))
            logger.warning(
                "%s is not forkable, so its episodes cannot return to an earlier turn; they use on_resume=turn instead",
                env_id_of(env),
            )
        return ResumedPlay(episode, counts, None)

    def turns(self, engine: Engine, counts: ResumeCounts | None = None) -> Engine:
        return InterruptedTurns(engine, self.how, counts or ResumeCounts(), trained=self.trained)
