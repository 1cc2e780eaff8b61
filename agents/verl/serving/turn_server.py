"""What a rollout replica does around its engine, the same for every engine.

Its turns begin with drafts, as the run's settings have it (``turn_drafts.pipeline``), and
other replicas get them. An update of the weights closes a step for all of these. A
checkpoint of the trainer has a part of each replica: the store of drafts, stored
turns, precomputed turns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from turntree.agents.engines.protocol import Engine
from turntree.agents.turn_drafts.config import ReuseMode
from turntree.agents.turn_drafts.idle_slots import IdleSlots
from turntree.agents.turn_drafts.last_validation import LastValidation
from turntree.agents.turn_drafts.pipeline import DraftedTurns
from turntree.agents.turn_drafts.precomputed import PrecomputedTurns, RunAheadEngine
from turntree.agents.turn_drafts.stored import StoredTurns
from turntree.agents.verl.config.settings import RunSettings
from turntree.agents.verl.records.checkpoint_state import Saved, ServerState, checkpoint_folder, state_folder
from turntree.agents.verl.records.step_counters import StepCounters
from turntree.agents.verl.serving.restarts import ServerLife, retry_after_restart
from turntree.agents.verl.serving.turn_pipe import NumberedRequest, TurnBatchServer, TurnReply
from turntree.spec_tree import DialogueState
from turntree.spec_tree.sharing.turn_sharing import SharedTurns, SwapCounts, TurnSharing

logger = logging.getLogger(__name__)


class TurnStore(Saved, Protocol):
    """An engine's store of drafts, in whatever process it lives: a ``SpecForest``, or one that is called remotely.
    Only ``insert`` may be called on the event loop's thread."""

    def insert(self, state: DialogueState, tokens: Sequence[int]) -> None:
        """Add a finished turn."""

    def insert_all(self, states: Sequence[DialogueState], turns: Sequence[Any]) -> None:
        """Add finished turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What the drafts of a replica must know of it and of its model."""

    rank: int
    seed: int
    """For turns that bring none."""
    vocabulary: int
    """Logits of a position."""
    max_context: int
    """Most tokens of prompt and response together."""
    tokenizer: str = ""
    """Hash of the policy's tokenizer; empty where it is not known."""
    restarted: bool = False
    """Whether an earlier process of it was lost. It then loads nothing of a checkpoint, as turns of it may have been
    used since."""


class TurnServer:
    """A replica's engine behind its drafts, through the steps of a training; see the module's docstring.

    Args:
        engine: Samples, scores where reuse needs it, and takes turns for later steps where run-ahead is on.
        store: The engine's store of drafts; ``None`` if it has none that can be reached.
        sharing: The connection to the stores of other replicas; ``None`` exchanges no turns.
        slots: The engine's slots, where precomputed turns run and the engine does not bound them itself.
        has_imported: As in ``DraftedTurns``.
    """

    def __init__(
        self,
        engine: Engine,
        run: RunSettings,
        replica: Replica,
        *,
        store: TurnStore | None = None,
        sharing: TurnSharing | None = None,
        slots: IdleSlots | None = None,
        has_imported: bool = False,
    ) -> None:
        vocabulary, tokenizer = replica.vocabulary, replica.tokenizer
        stored = validation = ahead = None
        if run.reuse.mode is not ReuseMode.NONE:
            stored = StoredTurns(run.reuse, vocabulary=vocabulary, max_context=replica.max_context, seed=replica.seed)
        if run.validation.coupled:
            validation = LastValidation(max_tokens=run.validation.max_tokens)
        if run.run_ahead.enabled:
            noise = None if stored is None else stored.base_seed
            ahead = PrecomputedTurns(cast(RunAheadEngine, engine), run.run_ahead, slots=slots, noise=noise)
        self._ahead = ahead
        self._shared = None
        if sharing is not None and store is not None:
            self._shared = SharedTurns(store, sharing, vocabulary=vocabulary, tokenizer=tokenizer)
        self.engine = DraftedTurns(
            engine,
            [source for source in (validation, ahead, stored) if source is not None],
            slots=slots,
            remember=None if store is None else store.insert,
            note=None if self._shared is None else self._shared.note,
            has_imported=has_imported,
        )
        """Samples one turn, for this step or for a later one."""
        self.desk = TurnBatchServer(self.engine)
        """The same for clients that send turns in bulk."""
        self._counters = StepCounters(run, replica.rank, self.engine)
        self._state = ServerState(store, stored, ahead, vocabulary=vocabulary, tokenizer=tokenizer)
        self._resumable = bool(run.checkpoint_dir) and not replica.restarted
        self._checkpoints = Path(run.checkpoint_dir)
        self._rank = replica.rank
        self.step = 0
        """Updates that the trainer has made."""

    def collect(self, named: Mapping[str, Any]) -> None:
        """Keep a bucket of the coming weights, if they may be saved."""
        self._counters.collect(named)

    async def close_step(self, step: int, counters: Mapping[str, float]) -> None:
        """The policy was updated: what was sampled since the last call was trained on. Run-ahead stays paused.

        Args:
            step: Updates that the trainer has made.
            counters: The engine's, since its start.
        """
        self.step = step
        await self._resume_once()
        await self.swap()
        self._counters.close_step(step, counters, self._swaps)

    async def swap(self) -> None:
        """Exchange turns with the other replicas."""
        if self._shared is not None:
            await asyncio.to_thread(self._shared.swap)

    async def begin_step(self, step: int) -> None:
        """Training step ``step`` is about to request its turns; returns once none is precomputed for it."""
        if self._ahead is not None:
            await self._ahead.begin_step(step)

    async def pause(self, *, for_update: bool = True) -> None:
        """Precompute nothing until ``resume``, and end the passes that began early.

        Args:
            for_update: Whether the weights are about to change; else the setting decides, since the trainer computes.
        """
        await self.engine.cancel_prefetch()
        if self._ahead is not None and (for_update or self._ahead.config.during_update is False):
            await self._ahead.pause()

    def resume(self) -> None:
        """Precompute turns again."""
        if self._ahead is not None:
            self._ahead.resume()

    def read_counters(self, counters: Mapping[str, float]) -> dict[str, float]:
        """Counters since the last call of this method, and the monitors' z-scores of the step.

        Args:
            counters: The engine's, since its start.
        """
        return self._counters.read(counters, self._swaps)

    async def save_state(self, folder: Path, step: int) -> None:
        """Write the state that outlives this process; ``step`` updates were made.

        Raises:
            OSError: If it cannot be written.
        """
        going = self._ahead is not None and self._ahead.active
        await self.pause()
        try:
            await self.swap()  # the broker is not saved, and a resumed run has a new one
            await asyncio.to_thread(self._state.write, folder, self._state.collect(), step=step)
        finally:
            if going:
                self.resume()

    async def _resume_once(self) -> None:
        """Load the checkpoint's part if the first weights are those of a resumed run."""
        if not self._resumable:
            return
        self._resumable = False
        if self.step == 0:
            return
        folder = state_folder(checkpoint_folder(self._checkpoints, self.step), self._rank)
        if folder.is_dir():
            await asyncio.to_thread(self._state.read, folder, step=self.step)
        else:
            logger.warning("the run resumes at step %d with empty stores: %s does not exist", self.step, folder)

    @property
    def _swaps(self) -> SwapCounts | None:
        return None if self._shared is None else self._shared.counts


class ServingTurns:
    """Methods that a Ray actor whose turns are a ``TurnServer``'s has whatever its engine is."""

    _life: ServerLife
    _turns: TurnServer | None = None

    async def engine_counters(self) -> dict[str, float]:
        """The engine's counters since its start, under the names of ``EngineStats``."""
        raise NotImplementedError

    @retry_after_restart
    async def ready(self) -> str:
        """Wait until the engine is started; returns an id of this process of the server."""
        return self._life.id

    async def serving(self) -> None:
        """Wait until the weights are the trainer's, which a restarted server does not have at first."""
        await self._life.wait_for_weights()

    async def submit_turns(self, client: str, requests: Sequence[NumberedRequest]) -> str:
        """Start turns for a ``TurnPipe``; returns the id by which they are collected.

        Raises:
            EngineLost: If the server was restarted and has no weights yet.
        """
        self._life.require_weights()
        assert self._turns is not None
        return self._turns.desk.submit(client, requests)

    async def collect_turns(self, client: str, life: str) -> list[TurnReply]:
        """Finished turns of a ``TurnPipe``, at least one."""
        assert self._turns is not None
        return await self._turns.desk.collect(client, life)

    async def begin_step(self, step: int) -> None:
        """Training step ``step`` is about to request its turns; returns once none is precomputed for it."""
        if self._turns is not None:
            await self._turns.begin_step(step)

    async def close_step(self, global_steps: int) -> None:
        """The policy was updated, ``global_steps`` times now: what was sampled until now was trained on."""
        if self._turns is not None:
            await self._turns.close_step(global_steps, await self.engine_counters())

    async def save_state(self, folder: str, step: int) -> None:
        """Write the state that outlives this process; ``step`` updates were made.

        Raises:
            OSError: If it cannot be written.
        """
        if self._turns is not None:
            await self._turns.save_state(Path(folder), step)

    async def step_counters(self) -> dict[str, float]:
        """Counters since the last call, for verl's log; see ``metrics``."""
        return {} if self._turns is None else self._turns.read_counters(await self.engine_counters())
