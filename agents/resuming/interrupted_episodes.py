"""Replay an interrupted episode so that one policy samples all of its turns.

Each request of the episode is kept with its turn. After a weight update the new policy re-verifies the turns: the old
tokens are the draft, and one pass checks which of them the new policy draws with the turn's seed. The episode resumes
after the first turn whose tokens change. ``RecordedEnv`` answers the unchanged turns from its record and restores the
snapshot before the changed turn. The result is the episode that the new policy alone plays with the same seeds, even
if the update came after the episode's end.

If the environment cannot be restored, ``OnResume.TURN`` applies: only the interrupted turn is re-verified, and the
episode is counted as stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, TurnRequest
from turntree.agents.episodes.episode import Episode
from turntree.agents.resuming.interrupted_turns import ResumeCounts, RetryingEngine, Seeds, pause, reverify
from turntree.agents.resuming.recorded_env import RecordedEnv

#: plays one episode in an environment with an engine: ``rollout`` with its other arguments bound
Roll = Callable[[Any, Engine], Awaitable[Episode]]


class Newest:
    """Track the newest weights version that a process has seen."""

    def __init__(self) -> None:
        self.version = 0

    def see(self, version: int) -> None:
        self.version = max(self.version, version)


class InterruptedEpisode:
    """Play one episode again until a single policy has sampled all of its turns.

    Args:
        engine: Samples the turns; its noise must be a function of the seed.
        roll: Plays the episode once, with this object as the engine.
        newest: The newest weights version, shared by all episodes of the process.
        trained: Seeds whose turns the policy was already trained on.
        wait: Awaited after each abort, before the turn is requested again.
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
        self._engine = RetryingEngine(engine, self.counts)
        self._roll = roll
        self._newest = newest
        self._trained = trained
        self._wait = wait
        self._asked: list[tuple[TurnRequest, Completion]] = []  #: the episode's requests so far, with their turns
        self._partial: tuple[TurnRequest, tuple[int, ...]] | None = None  #: the interrupted turn and its tokens
        self._next = 0  #: index of the next turn in ``_asked`` that this attempt has not replayed
        self._left = False  #: whether this attempt was cancelled for a re-verification, not by the caller

    @property
    def version(self) -> int:
        """Return the weights version of the turns, the oldest if they differ."""
        return min((turn.weights_version for _, turn in self._asked), default=self._newest.version)

    @property
    def seeds(self) -> set[int]:
        return {asked.sampling.seed for asked, _ in self._asked if asked.sampling.seed is not None}

    async def play(self) -> Episode:
        """Play the episode, re-verifying and resuming after every weight update."""
        while True:
            await self._reverify()
            self._next, self._left = 0, False
            try:
                episode = await self._roll(self.env, self)
            except asyncio.CancelledError:
                if not self._left:
                    raise
                await self._wait()
                continue
            # The episode may have ended in fewer turns than the recorded attempt.
            del self._asked[self._next :]
            self._partial = None
            # After the last turn no request follows that would notice a weight update.
            if episode.masked or self.version == self._newest.version:
                return episode

    async def generate(self, request: TurnRequest) -> Completion:
        """Return the re-verified turn if there is one, else sample a new turn."""
        if self._next < len(self._asked):
            asked, turn = self._asked[self._next]
            if _same(asked, request):
                self._next += 1
                return turn
            self._drop(self._next)
        if self._asked and self.version != self._newest.version:
            self._leave()
        partial, self._partial = self._partial, None
        if partial is not None and _same(partial[0], request):
            turn = await reverify(self._engine, request, partial[1], self.counts, trained=self._trained)
        else:
            turn = await self._engine.generate(request)
        if _aborted(turn):
            self.counts.interruptions += 1
            self._partial = request, turn.token_ids
            self._leave()
        self._newest.see(turn.weights_version)
        self._asked.append((request, turn))
        self._next += 1
        if self.version != self._newest.version:
            self._leave()
        return turn

    def _leave(self) -> None:
        # The rollout lets a CancelledError through; any other exception would become a failed episode.
        self._left = True
        raise asyncio.CancelledError("the weights were updated")

    async def _reverify(self) -> None:
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
                index = next(i for i, (request, _) in enumerate(self._asked) if request is asked)
                self._asked[index] = asked, turn
                if turn.token_ids != before.token_ids:
                    self.counts.rewinds += index + 1 < len(self._asked) or self._partial is not None
                    self._drop(index + 1)
                    break
            if self.version < self._newest.version:  # the replica does not have the new weights yet
                await self._wait()

    def _drop(self, index: int) -> None:
        # Later turns answered a dialogue that the changed turn makes invalid.
        self.counts.dropped += sum(len(turn.token_ids) for _, turn in self._asked[index:])
        if self._partial is not None:
            self.counts.dropped += len(self._partial[1])
        del self._asked[index:]
        self._partial = None


def _same(one: TurnRequest, other: TurnRequest) -> bool:
    return tuple(one.prompt_ids) == tuple(other.prompt_ids) and one.sampling == other.sampling


def _aborted(turn: Completion) -> bool:
    return turn.finish_reason is FinishReason.ABORT
