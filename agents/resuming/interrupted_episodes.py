"""One episode whose turns are all of the policy that it will be trained on.

Every request of the episode is kept with its turn. When the weights have changed, all of
them are verified again, each in one pass with its own noise (``interrupted_turns``), up to the
first whose tokens are others. Then the episode is played again: the environment answers
the verified again turns from its record, goes back to before the first other one, and goes on from
there (``recorded_env``). So the episode is the one that the new policy alone plays with its
seeds, at whatever moment the update came, also after the episode's end.

Where the environment cannot go back, only the interrupted turn is verified again
(``OnResume.TURN``), and the episode is counted as stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, TurnRequest
from turntree.agents.episodes.episode import Episode
from turntree.agents.resuming.interrupted_turns import Seeds, longer, pause, reverify
from turntree.agents.resuming.lost_turns import LostTurns
from turntree.agents.resuming.recorded_env import RecordedEnv
from turntree.agents.resuming.resume_counts import ResumeCounts

Roll = Callable[[Any, Engine], Awaitable[Episode]]
"""Plays the episode in an environment with an engine: ``rollout`` with all else given."""


class Newest:
    """The newest version of the weights that a process has seen."""

    def __init__(self) -> None:
        self.version = 0

    def see(self, version: int) -> None:
        """A turn, or the trainer, has this version."""
        self.version = max(self.version, version)


class InterruptedEpisode:
    """An episode and the ``Engine`` that it is played with; see the module's docstring.

    Args:
        engine: Samples the turns; its noise is a function of the seed.
        env: The environment.
        roll: See ``Roll``.
        newest: Shared by all episodes of the process.
        trained: Seeds of noise that the policy was trained on.
        wait: Awaited after each abort.
    """

    def __init__(
        self,
        engine: Engine,
        env: RecordedEnv,
        roll: Roll,
        newest: Newest,
        *,
        trained: Seeds = (),
        wait: Callable[[], Awaitable[None]] = pause,
    ) -> None:
        self.env = env
        self.counts = ResumeCounts()
        self._engine = LostTurns(engine, self.counts)
        self._roll = roll
        self._newest = newest
        self._trained = trained
        self._wait = wait
        self._asked: list[tuple[TurnRequest, Completion]] = []
        self._begun: tuple[TurnRequest, tuple[int, ...]] | None = None
        """The interrupted turn, and its tokens."""
        self._place = 0
        self._interrupted_group = False

    @property
    def version(self) -> int:
        """Version of the weights of all turns; the oldest where they differ."""
        return min((turn.weights_version for _, turn in self._asked), default=self._newest.version)

    @property
    def seeds(self) -> set[int]:
        """Seeds of its noise."""
        return {asked.sampling.seed for asked, _ in self._asked if asked.sampling.seed is not None}

    async def play(self) -> Episode:
        """The episode by the newest policy: played, or what was played verified again and played on."""
        while True:
            await self._judge()
            self._place, self._interrupted_group = 0, False
            try:
                episode = await self._roll(self.env, self)
            except asyncio.CancelledError:
                if not self._interrupted_group:
                    raise
                await self._wait()
                continue
            del self._asked[self._place :]
            self._begun = None
            if episode.masked or self.version == self._newest.version:
                return episode

    async def generate(self, request: TurnRequest) -> Completion:
        """The turn as it was verified again, or a new one."""
        if self._place < len(self._asked):
            asked, turn = self._asked[self._place]
            if _same(asked, request):
                self._place += 1
                return turn
            self._drop(self._place)
        if self._asked and self.version != self._newest.version:
            self._leave()
        begun, self._begun = self._begun, None
        if begun is not None and _same(begun[0], request):
            turn = await reverify(self._engine, request, begun[1], self.counts, trained=self._trained)
            turn = replace(turn, token_ids=longer(begun[1], turn.token_ids)) if _aborted(turn) else turn
        else:
            turn = await self._engine.generate(request)
        if _aborted(turn):
            self.counts.interruptions += 1
            self._begun = request, turn.token_ids
            self._leave()
        self._newest.see(turn.weights_version)
        self._asked.append((request, turn))
        self._place += 1
        if self.version != self._newest.version:
            self._leave()
        return turn

    def _leave(self) -> None:
        """End the attempt: its turns so far are to be verified again first."""
        self._interrupted_group = True
        raise asyncio.CancelledError("the weights were updated")

    async def _judge(self) -> None:
        """Judge the turns so far, until all are of one version, and drop those behind the first other one."""
        while self._asked and self.version != self._newest.version:
            old = [(asked, turn) for asked, turn in self._asked if turn.weights_version != self._newest.version]
            turns = await asyncio.gather(
                *(
                    reverify(self._engine, asked, turn.token_ids, self.counts, trained=self._trained)
                    for asked, turn in old
                )
            )
            for (asked, before), turn in zip(old, turns, strict=True):
                if _aborted(turn):
                    break
                self._newest.see(turn.weights_version)
                place = next(i for i, (one, _) in enumerate(self._asked) if one is asked)
                self._asked[place] = asked, turn
                if turn.token_ids != before.token_ids:
                    self._rewind(place + 1)
                    break
            if self.version < self._newest.version:  # a replica that has the new weights not yet
                await self._wait()

    def _rewind(self, place: int) -> None:
        self.counts.rewinds += place < len(self._asked) or self._begun is not None
        self._drop(place)

    def _drop(self, place: int) -> None:
        """Throw the turns from ``place`` on away: they answered something else."""
        self.counts.dropped += sum(len(turn.token_ids) for _, turn in self._asked[place:])
        if self._begun is not None:
            self.counts.dropped += len(self._begun[1])
        del self._asked[place:]
        self._begun = None


def _same(one: TurnRequest, other: TurnRequest) -> bool:
    return tuple(one.prompt_ids) == tuple(other.prompt_ids) and one.sampling == other.sampling


def _aborted(turn: Completion) -> bool:
    return turn.finish_reason is FinishReason.ABORT
