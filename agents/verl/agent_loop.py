"""verl's agent loop ``turntree_env``: plays a turntree environment by turntree's one loop.

A row of the data set names the environment, its settings and the task; the
loop never raises. An episode that the surroundings broke is tried once more
with the same seed; if that fails too it is masked and counted.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, register

from turntree.envs import Env, Limits

from turntree.agents.engines.protocol import Sampling
from turntree.agents.episode import Episode, StopReason
from turntree.agents.renderer import Renderer
from turntree.agents.rollout import derive_seed, describe, rollout
from turntree.agents.verl.dataset import AGENT_NAME, make_env
from turntree.agents.verl.engine import VerlEngine
from turntree.agents.verl.output import EpisodeOutput, to_output
from turntree.agents.verl.plugin import ROLLOUT_NAME
from turntree.agents.verl.recording import EpisodeRecorder, RunFolder
from turntree.agents.verl.settings import RunSettings

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""How often an episode is tried."""


@register(AGENT_NAME)
class EnvAgentLoop(AgentLoopBase):
    """One episode. verl makes an object per episode; what they share is made once per process.

    Args:
        trainer_config: verl's wrapped configuration.
        server_manager: verl's client of the rollout servers.
        tokenizer: The policy's tokenizer.
        kwargs: What else verl gives to loops; unused.
    """

    def __init__(self, trainer_config: Any, server_manager: Any, tokenizer: Any, **kwargs: Any) -> None:
        # Not calling super().__init__(): it builds verl's own tokenisation, again for every episode.
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout
        self.server_manager = server_manager
        self.tokenizer = tokenizer

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> EpisodeOutput:
        """Play the episode of ``row``.

        Args:
            sampling_params: verl's: temperature, top_p, top_k.
            row: Columns of the data set, and verl's ``session_id`` and ``global_steps``.
        """
        index, session, step = int(row["index"]), int(row.get("session_id", 0)), int(row["global_steps"])
        seed = derive_seed(int(self.rollout_config.seed), step, index, session)
        sampling = Sampling(
            temperature=sampling_params["temperature"],
            top_p=sampling_params["top_p"],
            top_k=sampling_params["top_k"],
            seed=seed,
        )
        for attempt in range(1, ATTEMPTS + 1):
            episode = await self._play(row, index, sampling)
            if not episode.masked:
                break
            logger.warning("task %d, sample %d, attempt %d failed: %s", index, session, attempt, episode.failure)
        if (row.get("extra_info") or {}).get("split") == "train" and (recorder := self._recorder()):
            recorder.write(episode, step=step, index=index, session=session, seed=seed)
        filler = self.tokenizer.eos_token_id
        return to_output(
            episode,
            weights_version=step - 1,
            filler_id=filler if filler is not None else 0,
            attempts=attempt,
        )

    async def _play(self, row: Mapping[str, Any], index: int, sampling: Sampling) -> Episode:
        env_id, settings = row["env_id"], row.get("env_kwargs") or "{}"
        try:
            env = _idle(env_id, settings)
            engine = VerlEngine(self.server_manager, pass_state=self.rollout_config.name == ROLLOUT_NAME)
            limits = self._limits(env.unwrapped.limits)
            # All samples of a task start in the same state: the environment's seed is the row's index.
            episode = await rollout(
                env, engine, _renderer(self.tokenizer), limits, index=index, seed=index, sampling=sampling
            )
        except Exception as error:
            # rollout() turns what breaks inside an episode into a failure; this is what breaks before it.
            logger.exception("an episode of %s could not be started", env_id)
            return Episode(
                env_id=env_id,
                task=None,
                seed=index,
                messages=(),
                turns=(),
                stop_reason=StopReason.FAILURE,
                failure=describe(error),
            )
        if not episode.masked:
            _IDLE[env_id, settings].append(env)
        return episode

    def _limits(self, limits: Limits) -> Limits:
        """The environment's limits, within verl's."""
        response = int(self.rollout_config.response_length)
        context = int(self.rollout_config.prompt_length) + response
        return replace(
            limits,
            max_episode_tokens=min(limits.max_episode_tokens or response, response),
            max_context_tokens=min(limits.max_context_tokens or context, context),
        )

    def _recorder(self) -> EpisodeRecorder | None:
        custom = self.rollout_config.get("custom")
        return _recorder_of(json.dumps(dict((custom or {}).get("turntree") or {}), default=str))


_IDLE: dict[tuple[str, str], list[Env]] = defaultdict(list)
"""Environments between two episodes, by id and settings; making one may read a data set."""


def _idle(env_id: str, settings: str) -> Env:
    idle = _IDLE[env_id, settings]
    return idle.pop() if idle else make_env(env_id, json.loads(settings))


@lru_cache(maxsize=4)
def _renderer(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer)


@lru_cache(maxsize=4)
def _recorder_of(section: str) -> EpisodeRecorder | None:
    settings = RunSettings.parse({"turntree": json.loads(section)})
    return EpisodeRecorder(RunFolder(settings.path)) if settings.path and settings.record_episodes else None
