"""The player of the episodes that a row of the data set names. Created once per process, used by all its episodes.

Nothing here raises. An episode that failed is tried once more with the same
seeds; if that fails too it is returned as a failure, which ``to_output`` masks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
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

ATTEMPTS = 2
"""Most attempts at an episode."""


class _Played(NamedTuple):
    """An episode before it is scored."""

    episode: Episode
    lost: tuple[FailureKind, ...]
    """Kinds of failure of the failed attempts, the last one included if it failed."""
    labels: dict[str, int]
    recorded: bool
    resumed: ResumedPlay | None = None
    """Of a training whose weights change meanwhile."""
    env_kind: EnvKind = ("", "")
    """That of its environment."""
    calls: ToolCallsAhead | None = None
    """Calls made before their turn had ended, of all attempts."""

    def counted(self) -> dict[str, Any]:
        """What updates of the weights did to it, and what became of its early calls, where it has them."""
        resumed = {} if self.resumed is None else asdict(self.resumed.counts)
        calls = {} if self.calls is None else {name: getattr(self.calls, name) for name in CALL_COUNTS}
        return {
            **{f"resume_{name}": value for name, value in resumed.items()},
            **{f"tool_calls_ahead_{name}": value for name, value in calls.items()},
        }


class _RowTurns:
    """The engine of a row's episode, which knows what ``rollout`` does not.

    Args:
        trains: Whether the policy is trained on them; those of a validation are not reused, and reuse no others.
        seeded: Whether they have the seeds that ``rollout`` gives to each; else their noise is fresh.
        sample: As ``TurnRequest.sample``.
        precomputed_for: As ``TurnRequest.precomputed_for``; such an episode is cancelled when a turn is aborted.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        trains: bool,
        seeded: bool,
        sample: int,
        precomputed_for: int = 0,
    ) -> None:
        self._engine, self._trains, self._seeded, self._sample = engine, trains, seeded, sample
        self._precomputed_for = precomputed_for

    async def generate(self, request: TurnRequest) -> Completion:
        """The engine's own turn."""
        sampling = request.sampling if self._seeded else replace(request.sampling, seed=None)
        request = replace(
            request, sampling=sampling, reuse=self._trains, sample=self._sample, precomputed_for=self._precomputed_for
        )
        turn = await self._engine.generate(request)
        if self._precomputed_for and turn.finish_reason is FinishReason.ABORT:
            raise asyncio.CancelledError(f"nothing more is precomputed for step {self._precomputed_for}")
        return turn


class EpisodePlayer:
    """Plays rows of the data set and returns verl's outputs.

    Args:
        rollout_config: verl's ``actor_rollout_ref.rollout``.
        on_resume: What becomes of sampled tokens when the weights change; ``None``: they do not while it plays.
    """

    def __init__(self, rollout_config: Any, tokenizer: Any, on_resume: OnResume | None = None) -> None:
        self._filler = 0 if tokenizer.eos_token_id is None else tokenizer.eos_token_id
        self._seed = int(rollout_config.seed)
        self._bounds = token_bounds(rollout_config.prompt_length, rollout_config.response_length)
        settings = RunSettings.parse(plain(rollout_config.get("custom")))
        self._renderer = Renderer(tokenizer, **settings.rendering)
        self._seeded = settings.draws_by_seed or on_resume is not None
        self.resuming = ResumedPlays(on_resume) if on_resume is not None else None
        self._waiting: dict[Any, list[_Played]] = {}
        """Groups that may be verified again again, by verl's name of each."""
        self._last = LastEpisodes() if settings.validation.coupled else None
        recording = settings.path is not None and settings.record_episodes
        self._recorder = EpisodeRecorder(RunFolder(settings.path)) if recording and settings.path else None
        self._scorer = settings.scorer()
        self._score_in_verl = settings.score_in_verl
        self._envs = IdleEnvs(settings.memo_results)
        # Where turns are generated again, tool calls are made again.
        again = settings.reuse.mode is not ReuseMode.NONE or settings.validation.coupled
        self._calls = settings.tool_calls_ahead if settings.tool_calls_ahead.enabled else None
        self._credits: dict[EnvKind, Credit] = defaultdict(Credit)
        self._stored: dict[EnvKind, StoredEpisodes] | None = None
        if (again and settings.reuse.early) or self._calls:
            self._stored = defaultdict(StoredEpisodes)

    async def play_group(
        self, sampling_params: Mapping[str, Any], row: Mapping[str, Any], engine: Callable[[], Engine], *, size: int
    ) -> list[EpisodeOutput]:
        """Play ``size`` episodes of ``row``, which are scored together.

        Masked ones are given the mean score of the others, so that they do not move the baseline.

        Args:
            sampling_params: verl's: temperature, top_p, top_k.
            row: Columns of the data set, and verl's ``uid`` and ``global_steps``.
        """
        plays = (self._play(sampling_params, {**row, "session_id": session}, engine) for session in range(size))
        played = await asyncio.gather(*plays)
        if self.resuming is not None and self.resuming.how is OnResume.EPISODE and played[0].recorded:
            self._waiting[row["uid"]] = played
        return await self._finish(played)

    async def play_again(self, name: Any) -> list[EpisodeOutput]:
        """Judge a group that has ended by the newest weights, and play on what these say otherwise."""
        played = await asyncio.gather(*map(self._again, self._waiting[name]))
        self._waiting[name] = played
        return await self._finish(played)

    async def _again(self, played: _Played) -> _Played:
        interrupted = played.resumed.interrupted if played.resumed is not None else None
        if played.resumed is None or interrupted is None or played.episode.masked:
            return played
        interrupted.env.attach(self._envs.take(played.env_kind))
        try:
            episode = await interrupted.play()
        except Exception as error:  # the engine is lost, and does not come back: as at the episode's first playing
            logger.warning("an episode of %s could not be verified again", played.episode.env_id, exc_info=True)
            episode = replace(played.episode, **_failure(error, FailureKind.ENGINE))
        env = interrupted.env.detach()
        if not episode.masked:
            self._envs.give_back(played.env_kind, env)
        return played._replace(episode=episode, resumed=played.resumed._replace(episode=episode))

    def version_of(self, name: Any) -> int:
        """Version of the weights that a group which has ended is of, or may be trained on as it is."""
        resuming = self.resuming
        assert resuming is not None
        plays = (
            one.resumed.interrupted for one in self._waiting.get(name, ()) if one.resumed and not one.episode.masked
        )
        return min((one.version for one in plays if one is not None), default=resuming.newest.version)

    def trained_on(self, name: Any) -> None:
        """A group was trained on: it is not verified again again, and its noise is not called exact again."""
        assert self.resuming is not None
        for one in self._waiting.pop(name, ()):
            if one.resumed is not None and one.resumed.interrupted is not None:
                self.resuming.trained.add(one.resumed.interrupted.seeds)

    def forget(self, name: Any) -> None:
        """A group is left out: it is neither verified again again nor trained on."""
        self._waiting.pop(name, None)

    async def _play(
        self, sampling_params: Mapping[str, Any], row: Mapping[str, Any], engine: Callable[[], Engine]
    ) -> _Played:
        index, session, step = int(row["index"]), int(row["session_id"]), int(row["global_steps"])
        trains = (row.get("extra_info") or {}).get("split", "train") == "train"
        # Coupled validations have the noise of step 0, in which nothing is trained on.
        noise = step if trains or self._last is None else 0
        sampling = self._sampling(sampling_params, noise, index, session, int(row.get("repeat", 0)))
        resumed = None
        lost: list[FailureKind] = []
        env_kind = kind_of_env(row)
        calls = None
        if self._calls:
            calls = ToolCallsAhead(min_probability=self._calls.min_probability, credit=self._credits[env_kind])
        while len(lost) < ATTEMPTS:
            resumed = await self._attempt(row, sampling, engine, trains, calls)
            episode = resumed.episode
            kind = failure_kind(episode)
            if kind is None:
                break
            lost.append(kind)
            logger.warning(
                "task %d, sample %d, attempt %d was lost to the %s: %s",
                *(index, session, len(lost), kind, episode.failure or "its answer could not be verified again"),
            )
        labels = {"step": step, "index": index, "session": session, "seed": sampling.seed or 0}
        interrupted = resumed if self.resuming and trains else None
        return _Played(episode, tuple(lost), labels, trains, interrupted, env_kind, calls)

    async def play_ahead(self, sampling_params: Mapping[str, Any], row: Mapping[str, Any], engine: Engine) -> None:
        """Play one episode of ``row`` for a later step, and return nothing: ``engine`` stores its turns.

        Args:
            row: As in ``play_group``, with its ``session_id``; ``global_steps`` is the step that it is for.
        """
        index, session, step = int(row["index"]), int(row["session_id"]), int(row["global_steps"])
        sampling = self._sampling(sampling_params, step, index, session)
        engine = _RowTurns(engine, trains=True, seeded=True, sample=session, precomputed_for=step)
        kind = kind_of_env(row)
        env = self._envs.take(kind)
        broken = not env.step_inline  # cancelled in the middle of a step, it may still run in a thread
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
        """Sampling parameters of an episode: its seed is a function of the run's, of its step, task and session, and of
        how often the task was begun in the step before."""
        again = (repeat,) if repeat else ()
        return Sampling(
            temperature=float(sampling_params["temperature"]),
            top_p=float(sampling_params["top_p"]),
            top_k=int(sampling_params["top_k"]),
            seed=derive_seed(self._seed, step, index, session, *again),
        )

    async def _finish(self, played: Sequence[_Played]) -> list[EpisodeOutput]:
        """Score, record and convert finished episodes."""
        episodes = [one.episode for one in played]
        if self._scorer is not None:
            episodes = await judge_episodes(episodes, self._scorer)
        outputs = []
        for one, episode in zip(played, episodes, strict=True):
            reverified_away = episode.masked and not one.episode.masked
            if self._recorder is not None and one.recorded:
                self._recorder.write(episode, **one.labels)
            outputs.append(
                to_output(
                    episode,
                    weights_version=one.labels["step"] - 1,
                    filler_id=self._filler,
                    lost=(*one.lost, FailureKind.REWARD) if reverified_away else one.lost,
                    rewards=self._scorer.names if self._scorer is not None else (),
                    score_in_verl=self._score_in_verl,
                    counted=one.counted(),
                )
            )
            if self._last is not None and not one.recorded and not episode.masked:
                place = (episode.env_id, one.labels["index"], one.labels["session"])
                outputs[-1].extra_fields["reward_extra_info"].update(self._last.compare(place, episode))
        neutralise(outputs)
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
                self._roll,
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
            # rollout() turns errors inside an episode into a failure; this is for errors before it.
            logger.exception("an episode of %s could not be started", kind[0])
            failure = _failure(error, FailureKind.ENVIRONMENT)
            failed = Episode(env_id=kind[0], task=None, seed=index, messages=(), turns=(), **failure)
            return ResumedPlay(failed, ResumeCounts(), None)
        if not resumed.episode.masked:
            self._envs.give_back(kind, env)
        return resumed

    def _roll(self, env: Any, engine: Engine, **arguments: Any) -> Coroutine[Any, Any, Episode]:
        limits = arguments.pop("limits")
        return rollout(env, engine, self._renderer, limits, **arguments)


def _failure(error: Exception, otherwise: FailureKind) -> dict[str, Any]:
    """The fields of an episode that an error ended; it is ``otherwise``'s unless it says whose it is."""
    return {
        "stop_reason": StopReason.FAILURE,
        "failure": describe(error),
        "failure_kind": kind_of(error, otherwise),
    }
