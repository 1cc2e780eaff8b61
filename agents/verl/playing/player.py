"""Play the episodes of a row of the data set. Each process has one player, which all its episodes share.

The player does not raise. It retries a failed episode once with the same seeds. If the retry fails too, the player
returns the episode as a failure, which ``to_output`` masks (excludes from the loss).
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, Sampling, TurnRequest, derive_seed
from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.failures import FailureKind, failure_kind
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.loop.stored_episodes import StoredEpisodes
from turntree.agents.loop.tool_calls_ahead import Credit, ToolCallsAhead
from turntree.agents.resuming.interrupted_turns import ResumeCounts
from turntree.agents.resuming.resume_config import OnResume
from turntree.agents.scoring.judging import judge_episodes
from turntree.agents.turn_drafts.config import ReuseMode
from turntree.agents.verl.config.sections import plain
from turntree.agents.verl.config.settings import RunSettings
from turntree.agents.verl.episodes.dataset import token_bounds
from turntree.agents.verl.episodes.output import EpisodeOutput, neutralise, to_output
from turntree.agents.verl.playing.idle_envs import EnvKind, IdleEnvs, kind_of_env
from turntree.agents.verl.playing.resumed_plays import ResumedPlay, ResumedPlays
from turntree.agents.verl.records.metrics import CALL_COUNTS
from turntree.agents.verl.records.recording import EpisodeRecorder, RunFolder
from turntree.agents.verl.records.validations import LastEpisodes
from turntree.envs.failure import describe, kind_of

logger = logging.getLogger(__name__)

ATTEMPTS = 2  #: per episode


class _Played(NamedTuple):
    episode: Episode
    failed: tuple[FailureKind, ...]  #: failure kinds of the failed attempts, including the last one
    labels: dict[str, int]
    recorded: bool  #: whether this is a training episode, not a validation episode
    resumed: ResumedPlay | None = None  #: only if the weights change during rollouts
    env_kind: EnvKind = ("", "")
    calls: ToolCallsAhead | None = None  #: speculative tool calls of all attempts

    def counted(self) -> dict[str, Any]:
        resumed = {} if self.resumed is None else asdict(self.resumed.counts)
        calls = {} if self.calls is None else {name: getattr(self.calls, name) for name in CALL_COUNTS}
        return {
            **{f"resume_{name}": value for name, value in resumed.items()},
            **{f"tool_calls_ahead_{name}": value for name, value in calls.items()},
        }


class _RowTurns:
    """An ``Engine`` for one episode that sets the request fields that ``rollout`` leaves unset.

    Args:
        trains: Whether the policy is trained on the turns. Validation turns neither reuse turns nor are reused.
        seeded: Whether turns keep the seeds from ``rollout``; otherwise each turn gets fresh noise.
        sample: See ``TurnRequest.sample``.
        precomputed_for: See ``TurnRequest.precomputed_for``. If it is set, an aborted turn cancels the episode.
    """

    def __init__(self, engine: Engine, *, trains: bool, seeded: bool, sample: int, precomputed_for: int = 0) -> None:
        self._engine, self._trains, self._seeded, self._sample = engine, trains, seeded, sample
        self._precomputed_for = precomputed_for

    async def generate(self, request: TurnRequest) -> Completion:
        sampling = request.sampling if self._seeded else replace(request.sampling, seed=None)
        request = replace(
            request, sampling=sampling, reuse=self._trains, sample=self._sample, precomputed_for=self._precomputed_for
        )
        turn = await self._engine.generate(request)
        if self._precomputed_for and turn.finish_reason is FinishReason.ABORT:
            raise asyncio.CancelledError(f"precomputing for step {self._precomputed_for} has stopped")
        return turn


class EpisodePlayer:
    """Plays rows of the data set and returns verl's outputs."""

    def __init__(self, rollout_config: Any, tokenizer: Any, on_resume: OnResume | None = None) -> None:
        self._filler = 0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        self._seed = int(rollout_config.seed)
        self._bounds = token_bounds(rollout_config.prompt_length, rollout_config.response_length)
        settings = RunSettings.parse(plain(rollout_config.get("custom")))
        self._renderer = Renderer(tokenizer, **settings.rendering)
        # Re-verification draws each turn again with the turn's seed, so turns need seeds if weights change meanwhile.
        self._seeded = settings.draws_by_seed or on_resume is not None
        self.resuming = ResumedPlays(on_resume) if on_resume is not None else None
        self._waiting: dict[Any, list[_Played]] = {}  #: groups that may be re-verified, by verl's group name
        # Coupled: all validations use the same noise, so an episode can be compared with the validation before.
        self._last_validation = LastEpisodes() if settings.validation.coupled else None
        recording = settings.path is not None and settings.record_episodes
        self._recorder = EpisodeRecorder(RunFolder(settings.path)) if recording and settings.path else None
        self._scorer = settings.scorer()
        self._score_in_verl = settings.score_in_verl
        self._envs = IdleEnvs(settings.memo_results)
        # A turn that equals a stored turn repeats its tool calls, so stored episodes can predict them.
        repeats = settings.reuse.mode is not ReuseMode.NONE or settings.validation.coupled
        self._calls = settings.tool_calls_ahead if settings.tool_calls_ahead.enabled else None
        self._credits: dict[EnvKind, Credit] = defaultdict(Credit)
        self._stored: dict[EnvKind, StoredEpisodes] | None = None
        if (repeats and settings.reuse.early) or self._calls:
            self._stored = defaultdict(StoredEpisodes)

    async def play_group(
        self, sampling_params: Mapping[str, Any], row: Mapping[str, Any], engine: Callable[[], Engine], *, size: int
    ) -> list[EpisodeOutput]:
        """Play ``size`` episodes of ``row`` and score them together."""
        # ``row`` also has verl's ``uid`` and ``global_steps``.
        plays = (self._play(sampling_params, {**row, "session_id": session}, engine) for session in range(size))
        played = await asyncio.gather(*plays)
        if self.resuming is not None and self.resuming.how is OnResume.EPISODE and played[0].recorded:
            self._waiting[row["uid"]] = played
        return await self._finish(played)

    async def reverify_group(self, name: Any) -> list[EpisodeOutput]:
        """Re-verify an ended group under the newest weights; resample from the first token that differs."""
        played = await asyncio.gather(*map(self._reverify, self._waiting[name]))
        self._waiting[name] = played
        return await self._finish(played)

    async def _reverify(self, played: _Played) -> _Played:
        interrupted = played.resumed.interrupted if played.resumed is not None else None
        if played.resumed is None or interrupted is None or played.episode.masked:
            return played
        interrupted.env.attach(self._envs.take(played.env_kind))
        try:
            episode = await interrupted.play()
        except Exception as error:  # the engine is lost for good, so the episode fails
            logger.warning("an episode of %s could not be re-verified", played.episode.env_id, exc_info=True)
            episode = replace(played.episode, **_failure(error, FailureKind.ENGINE))
        env = interrupted.env.detach()
        if not episode.masked:
            self._envs.give_back(played.env_kind, env)
        return played._replace(episode=episode, resumed=played.resumed._replace(episode=episode))

    def version_of(self, name: Any) -> int:
        """Return the oldest weight version among an ended group's turns."""
        resuming = self.resuming
        assert resuming is not None
        waiting = self._waiting.get(name, ())
        episodes = (played.resumed.interrupted for played in waiting if played.resumed and not played.episode.masked)
        # If no episode of a group can be re-verified, the policy is trained on the unchanged group, which counts as
        # current.
        return min((episode.version for episode in episodes if episode), default=resuming.newest.version)

    def trained_on(self, name: Any) -> None:
        """Forget a group that was trained on, and note its seeds: turns with these seeds never count as exact again."""
        assert self.resuming is not None
        for played in self._waiting.pop(name, ()):
            if played.resumed is not None and played.resumed.interrupted is not None:
                self.resuming.trained.add(played.resumed.interrupted.seeds)

    def forget(self, name: Any) -> None:
        self._waiting.pop(name, None)

    async def _play(
        self, sampling_params: Mapping[str, Any], row: Mapping[str, Any], engine: Callable[[], Engine]
    ) -> _Played:
        index, session, step = int(row["index"]), int(row["session_id"]), int(row["global_steps"])
        trains = (row.get("extra_info") or {}).get("split", "train") == "train"
        # Coupled validations use the noise of step 0, which no training step uses.
        noise_step = step if trains or self._last_validation is None else 0
        sampling = self._sampling(sampling_params, noise_step, index, session, int(row.get("repeat", 0)))
        resumed = None
        failed: list[FailureKind] = []
        env_kind = kind_of_env(row)
        calls = None
        if self._calls:
            calls = ToolCallsAhead(min_probability=self._calls.min_probability, credit=self._credits[env_kind])
        while len(failed) < ATTEMPTS:
            resumed = await self._attempt(row, sampling, engine, trains, calls)
            episode = resumed.episode
            kind = failure_kind(episode)
            if kind is None:
                break
            failed.append(kind)
            logger.warning(
                "task %d, sample %d: attempt %d failed because of the %s: %s",
                *(index, session, len(failed), kind, episode.failure or "its answer could not be graded"),
            )
        labels = {"step": step, "index": index, "session": session, "seed": sampling.seed or 0}
        interrupted = resumed if self.resuming and trains else None
        return _Played(episode, tuple(failed), labels, trains, interrupted, env_kind, calls)

    async def precompute(self, sampling_params: Mapping[str, Any], row: Mapping[str, Any], engine: Engine) -> None:
        """Play one episode of ``row`` before its step ``global_steps`` begins; ``engine`` stores the turns."""
        index, session, step = int(row["index"]), int(row["session_id"]), int(row["global_steps"])
        sampling = self._sampling(sampling_params, step, index, session)
        engine = _RowTurns(engine, trains=True, seeded=True, sample=session, precomputed_for=step)
        kind = kind_of_env(row)
        env = self._envs.take(kind)
        # If the episode is cancelled during ``env.step``, that call may still run in a thread. It cannot if the step
        # runs on the event loop (``step_inline``).
        broken = not env.step_inline
        try:
            limits = env.limits.within(self._bounds)
            episode = await rollout(env, engine, self._renderer, limits, index=index, seed=index, sampling=sampling)
            broken = episode.masked
        finally:
            if not broken:
                self._envs.give_back(kind, env)

    def _sampling(
        self, sampling_params: Mapping[str, Any], step: int, index: int, session: int, repeat: int = 0
    ) -> Sampling:
        # ``repeat`` counts earlier submissions of the task in this step. 0 does not change the seed.
        repeats = (repeat,) if repeat else ()
        return Sampling(
            temperature=float(sampling_params["temperature"]),
            top_p=float(sampling_params["top_p"]),
            top_k=int(sampling_params["top_k"]),
            seed=derive_seed(self._seed, step, index, session, *repeats),
        )

    async def _finish(self, played: Sequence[_Played]) -> list[EpisodeOutput]:
        episodes = [play.episode for play in played]
        if self._scorer is not None:
            episodes = await judge_episodes(episodes, self._scorer)
        outputs = []
        for play, episode in zip(played, episodes, strict=True):
            scoring_failed = episode.masked and not play.episode.masked
            if self._recorder is not None and play.recorded:
                self._recorder.write(episode, **play.labels)
            outputs.append(
                to_output(
                    episode,
                    weights_version=play.labels["step"] - 1,
                    filler_id=self._filler,
                    failed=(*play.failed, FailureKind.REWARD) if scoring_failed else play.failed,
                    rewards=self._scorer.names if self._scorer is not None else (),
                    score_in_verl=self._score_in_verl,
                    counted=play.counted(),
                )
            )
            if self._last_validation is not None and not play.recorded and not episode.masked:
                key = (episode.env_id, play.labels["index"], play.labels["session"])
                outputs[-1].extra_fields["reward_extra_info"].update(self._last_validation.compare(key, episode))
        neutralise(outputs)  # masked episodes must not move the group's baseline
        return outputs

    async def _attempt(
        self,
        row: Mapping[str, Any],
        sampling: Sampling,
        engine: Callable[[], Engine],
        trains: bool,
        calls: ToolCallsAhead | None,
    ) -> ResumedPlay:
        kind, index = kind_of_env(row), int(row["index"])
        try:
            env = self._envs.take(kind)
            # All samples of a task start in the same state: the environment's seed is the row's index.
            roll = partial(
                rollout,
                renderer=self._renderer,
                limits=env.limits.within(self._bounds),
                index=index,
                seed=index,
                sampling=sampling,
                stored=None if self._stored is None else self._stored[kind],
                tool_calls_ahead=calls,
            )
            sample = int(row["session_id"])
            turns = _RowTurns(engine(), trains=trains, seeded=self._seeded, sample=sample)
            if self.resuming is None:
                resumed = ResumedPlay(await roll(env, turns), ResumeCounts(), None)
            elif not trains:
                resumed = ResumedPlay(await roll(env, self.resuming.turns(turns)), ResumeCounts(), None)
            else:
                resumed = await self.resuming.play(env, turns, roll)
        except Exception as error:
            # ``rollout`` converts errors inside an episode to a failure; this error came before the episode.
            logger.exception("an episode of %s could not be started", kind[0])
            failure = _failure(error, FailureKind.ENVIRONMENT)
            failed = Episode(env_id=kind[0], task=None, seed=index, messages=(), turns=(), **failure)
            return ResumedPlay(failed, ResumeCounts(), None)
        if not resumed.episode.masked:
            self._envs.give_back(kind, env)
        return resumed


def _failure(error: Exception, default: FailureKind) -> dict[str, Any]:
    return {
        "stop_reason": StopReason.FAILURE,
        "failure": describe(error),
        "failure_kind": kind_of(error, default),  # an error may name its own kind
    }
