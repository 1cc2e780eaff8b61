"""Plays the episode that a row of the data set names. Made once per process, used by every episode in it.

``play`` never raises. An episode that the surroundings broke is tried once more
with the same seeds; if that fails too it comes back as a failure, which
``to_output`` masks.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from turntree.agents.engines.protocol import Engine, Sampling
from turntree.agents.episode import Episode, StopReason
from turntree.agents.renderer import Renderer
from turntree.agents.rollout import derive_seed, describe, rollout
from turntree.agents.verl.dataset import make_env, token_bounds
from turntree.agents.verl.output import EpisodeOutput, to_output
from turntree.agents.verl.recording import EpisodeRecorder, RunFolder
from turntree.agents.verl.sections import plain
from turntree.agents.verl.settings import RunSettings
from turntree.envs import Env, ResultMemo

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""How often an episode is tried."""


class EpisodePlayer:
    """Rows in, verl's outputs out.

    Args:
        rollout_config: verl's ``actor_rollout_ref.rollout``.
        tokenizer: The policy's tokenizer.
    """

    def __init__(self, rollout_config: Any, tokenizer: Any) -> None:
        self._renderer = Renderer(tokenizer)
        self._filler = 0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        self._seed = int(rollout_config.seed)
        self._bounds = token_bounds(rollout_config.prompt_length, rollout_config.response_length)
        settings = RunSettings.parse(plain(rollout_config.get("custom")))
        recording = settings.path is not None and settings.record_episodes
        self._recorder = EpisodeRecorder(RunFolder(settings.path)) if recording and settings.path else None
        self._memos: dict[tuple[str, str], ResultMemo] = {}
        self._memo_results = settings.memo_results
        # Between two episodes, by id and settings: making an environment may read a data set.
        self._idle: dict[tuple[str, str], list[Env]] = defaultdict(list)

    async def play(
        self, sampling_params: Mapping[str, Any], row: Mapping[str, Any], engine: Callable[[], Engine]
    ) -> EpisodeOutput:
        """Play the episode of ``row``.

        Args:
            sampling_params: verl's: temperature, top_p, top_k.
            row: Columns of the data set, and verl's ``session_id`` and ``global_steps``.
            engine: Makes the engine of one attempt.
        """
        index, session, step = int(row["index"]), int(row.get("session_id", 0)), int(row["global_steps"])
        seed = derive_seed(self._seed, step, index, session)
        sampling = Sampling(
            temperature=float(sampling_params["temperature"]),
            top_p=float(sampling_params["top_p"]),
            top_k=int(sampling_params["top_k"]),
            seed=seed,
        )
        for attempt in range(1, ATTEMPTS + 1):
            episode = await self._attempt(row, index, sampling, engine)
            if not episode.masked:
                break
            logger.warning("task %d, sample %d, attempt %d failed: %s", index, session, attempt, episode.failure)
        if self._recorder is not None and (row.get("extra_info") or {}).get("split") == "train":
            self._recorder.write(episode, step=step, index=index, session=session, seed=seed)
        return to_output(episode, weights_version=step - 1, filler_id=self._filler, attempts=attempt)

    async def _attempt(
        self, row: Mapping[str, Any], index: int, sampling: Sampling, engine: Callable[[], Engine]
    ) -> Episode:
        env_id, settings = row["env_id"], row.get("env_kwargs") or "{}"
        try:
            idle = self._idle[env_id, settings]
            env = idle.pop() if idle else self._make(env_id, settings)
            # All samples of a task start in the same state: the environment's seed is the row's index.
            episode = await rollout(
                env,
                engine(),
                self._renderer,
                env.limits.within(self._bounds),
                index=index,
                seed=index,
                sampling=sampling,
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
            idle.append(env)
        return episode

    def _make(self, env_id: str, settings: str) -> Env:
        env = make_env(env_id, json.loads(settings))
        if self._memo_results:
            # One memo for all environments of the same settings: siblings and later epochs meet in it.
            env.memo = self._memos.setdefault((env_id, settings), ResultMemo(self._memo_results))
        return env
