"""The part of a rollout server that does not depend on the engine.

``TurnPipe`` (client) and ``TurnBatchServer`` (server) transfer turns in bulk. ``TurnServer`` puts turn-level drafts in
front of the engine: whole turns from an earlier epoch (``StoredTurns``), from run-ahead (``PrecomputedTurns``) or from
the last validation (``LastValidation``). It also shares finished turns with other replicas, and saves its stores with
the trainer's checkpoints. For drafts, sharing and counters, a step ends with the weight update.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast
from uuid import uuid4

from turntree.agents.engines.protocol import Completion, Engine, TurnRequest
from turntree.agents.errors import EngineFailed, EngineLost
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
from turntree.spec_tree import DialogueState
from turntree.spec_tree.sharing.turn_sharing import SharedTurns, SwapCounts, TurnSharing

logger = logging.getLogger(__name__)


class NumberedRequest(NamedTuple):
    number: int  #: unique within a client
    turn: TurnRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReply:
    number: int
    completion: Completion | None = None  #: ``None`` if the engine raised
    error: str = ""  #: the engine's exception, on one line


class TurnPipe:
    """An ``Engine`` whose turns are sampled by a server actor (``ServingTurns``)."""

    def __init__(self, server: Any, client: str) -> None:
        self._server = server
        self._client = client
        self._waiting: dict[int, asyncio.Future[Completion]] = {}
        self._unsent: list[NumberedRequest] = []
        self._sent = 0
        self._collector: asyncio.Task[None] | None = None
        self._senders: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn; raise ``EngineFailed`` if the engine failed and ``EngineLost`` if the server died."""
        loop = asyncio.get_running_loop()
        self._sent += 1
        if not self._unsent:
            # Send all turns requested in this iteration of the event loop in one Ray call. With hundreds of concurrent
            # episodes of a small policy, one call per turn would cost more than the model.
            loop.call_soon(self._send)
        future: asyncio.Future[Completion] = loop.create_future()
        self._waiting[self._sent] = future
        self._unsent.append(NumberedRequest(self._sent, request))
        return await future

    async def begin_step(self, step: int) -> None:
        await self._server.begin_step.remote(step)

    def _send(self) -> None:
        requests, self._unsent = self._unsent, []
        sender = asyncio.create_task(self._submit(requests))
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)

    async def _submit(self, requests: list[NumberedRequest]) -> None:
        try:
            life = await self._server.submit_turns.remote(self._client, requests)
        except Exception as error:
            self._fail([request.number for request in requests], error)
            return
        if self._collector is None or self._collector.done():
            self._collector = asyncio.create_task(self._collect(life))

    async def _collect(self, life: str) -> None:
        try:
            while self._waiting:
                for reply in await self._server.collect_turns.remote(self._client, life):
                    future = self._waiting.pop(reply.number, None)
                    if future is None or future.done():
                        continue
                    if reply.completion is None:
                        future.set_exception(EngineFailed(reply.error))
                    else:
                        future.set_result(reply.completion)
        except Exception as error:
            self._fail(list(self._waiting), error)

    def _fail(self, numbers: Sequence[int], error: Exception) -> None:
        # The server died, so every episode that waits for one of these turns gets an error.
        for number in numbers:
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_exception(EngineLost(f"the rollout server is unreachable: {error}"))


class TurnBatchServer:
    """The server's end of ``TurnPipe``; all methods run on the server's event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._life = uuid4().hex
        self._finished: dict[str, list[TurnReply]] = {}
        self._finished_events: dict[str, asyncio.Event] = {}
        self._running: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> int:
        """Number of running turns plus number of clients with finished turns to collect; 0 if idle."""
        return len(self._running) + len(self._finished)

    @property
    def running(self) -> int:
        return len(self._running)

    def submit(self, client: str, requests: Sequence[NumberedRequest]) -> str:
        """Start turns for ``client``; return the id of this server process, an argument of ``collect``."""
        for request in requests:
            task = asyncio.create_task(self._run(client, request))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return self._life

    async def collect(self, client: str, life: str) -> list[TurnReply]:
        """Wait until a turn of ``client`` has finished; return all turns finished since the last call."""
        if life != self._life:
            raise EngineLost("the server was restarted")
        await self._event(client).wait()
        self._event(client).clear()
        return self._finished.pop(client, [])

    async def _run(self, client: str, request: NumberedRequest) -> None:
        try:
            completion = await self._engine.generate(request.turn)
            reply = TurnReply(number=request.number, completion=completion)
        except Exception as error:
            # ``TurnPipe`` raises this error again, inside the episode that requested the turn.
            reply = TurnReply(number=request.number, error=f"{type(error).__name__}: {error}")
        self._finished.setdefault(client, []).append(reply)
        self._event(client).set()

    def _event(self, client: str) -> asyncio.Event:
        return self._finished_events.setdefault(client, asyncio.Event())


class TurnStore(Saved, Protocol):
    """The draft store of an engine: a ``SpecForest``, or a proxy of a ``SpecForest`` in another process.

    Only ``insert`` may be called on the event loop's thread.
    """

    def insert(self, state: DialogueState, tokens: Sequence[int]) -> None: ...

    def insert_all(self, states: Sequence[DialogueState], turns: Sequence[Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    rank: int
    seed: int  #: for requests without a seed
    vocabulary: int  #: size of the logits
    max_context: int  #: tokens, prompt and response together
    tokenizer: str = ""  #: hash of the policy's tokenizer; empty if unknown
    restarted: bool = False


class TurnServer:
    """A replica's engine with turn-level drafts, for all steps of a training.

    Args:
        engine: Samples turns. Must be a ``ScoringEngine`` for reuse and a ``RunAheadEngine`` for run-ahead.
        store: The engine's draft store; ``None`` if the engine does not draft.
        sharing: Connection to the stores of other replicas; ``None``: turns are not shared.
        slots: Limits precomputed turns to idle slots of the engine; ``None`` if the engine itself limits them.
        has_imported: See ``DraftedTurns``.
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
            noise = None if stored is None else stored.base_seed  # with reuse, a seed's noise depends on the step
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
        self.batches = TurnBatchServer(self.engine)
        self._counters = StepCounters(run, replica.rank, self.engine)
        self._state = ServerState(store, stored, ahead, vocabulary=vocabulary, tokenizer=tokenizer)
        # A restarted process loads no checkpoint: the dead process may have used the checkpoint's turns since.
        self._resumable = bool(run.checkpoint_dir) and not replica.restarted
        self._checkpoints = Path(run.checkpoint_dir)
        self._rank = replica.rank
        self.step = 0

    def collect(self, named: Mapping[str, Any]) -> None:
        self._counters.collect(named)

    async def close_step(self, step: int, counters: Mapping[str, float]) -> None:
        """Close a step after weight update ``step``: the policy was trained on all turns. Run-ahead stays paused."""
        self.step = step
        await self._load_checkpoint_once()
        await self.swap()
        self._counters.close_step(step, counters, self._swaps)

    async def swap(self) -> None:
        if self._shared is not None:
            await asyncio.to_thread(self._shared.swap)

    async def begin_step(self, step: int) -> None:
        """Stop precomputing turns of training step ``step``: its turns will be requested from now on."""
        if self._ahead is not None:
            await self._ahead.begin_step(step)

    async def pause(self, *, for_update: bool = True) -> None:
        """Stop run-ahead until ``resume``, and cancel prefetches (verifications before the turn is requested).

        Args:
            for_update: Whether the weights are about to change. If not, ``run_ahead.during_update`` decides.
        """
        await self.engine.cancel_prefetch()
        if self._ahead is not None and (for_update or self._ahead.config.during_update is False):
            await self._ahead.pause()

    def resume(self) -> None:
        if self._ahead is not None:
            self._ahead.resume()

    def read_counters(self, counters: Mapping[str, float]) -> dict[str, float]:
        """Return the counters' growth since the last call, and the step's exactness z-scores."""
        return self._counters.read(counters, self._swaps)

    async def save_state(self, folder: Path, step: int) -> None:
        # Pause run-ahead, so that the stores do not change while they are written.
        was_running = self._ahead is not None and self._ahead.active
        await self.pause()
        try:
            await self.swap()  # the broker is not saved, and a resumed run has a new one
            await asyncio.to_thread(self._state.write, folder, self._state.collect(), step=step)
        finally:
            if was_running:
                self.resume()

    async def _load_checkpoint_once(self) -> None:
        # Only the first weights that reach this process can be the weights of a resumed checkpoint.
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
    """Methods of a Ray actor that serves turns through a ``TurnServer``."""

    _life: ServerLife
    _turns: TurnServer | None = None

    async def engine_counters(self) -> dict[str, float]:
        raise NotImplementedError

    @retry_after_restart
    async def ready(self) -> str:
        # Ray runs this only after the constructor, so the engine has started.
        return self._life.id

    async def serving(self) -> None:
        # A restarted server does not have the trainer's weights at first.
        await self._life.wait_for_weights()

    async def submit_turns(self, client: str, requests: Sequence[NumberedRequest]) -> str:
        self._life.require_weights()
        assert self._turns is not None
        return self._turns.batches.submit(client, requests)

    async def collect_turns(self, client: str, life: str) -> list[TurnReply]:
        assert self._turns is not None
        return await self._turns.batches.collect(client, life)

    async def begin_step(self, step: int) -> None:
        if self._turns is not None:
            await self._turns.begin_step(step)

    async def close_step(self, global_steps: int) -> None:
        if self._turns is not None:
            await self._turns.close_step(global_steps, await self.engine_counters())

    async def save_state(self, folder: str, step: int) -> None:
        if self._turns is not None:
            await self._turns.save_state(Path(folder), step)

    async def step_counters(self) -> dict[str, float]:
        return {} if self._turns is None else self._turns.read_counters(await self.engine_counters())
