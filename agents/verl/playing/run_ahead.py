"""Run-ahead: precompute the episodes that the next training step will request, while the engine has idle slots.

``RowForecast`` predicts the trainer's next rows. The trainer's configuration fixes their order: sequential, or shuffled
with a seed. ``RowForecast`` builds the same data set and sampler and so gets the same order. Each submitted batch shows
the trainer's position in that order, also after a resume. If the forecast is wrong (shuffling without a seed, or rows
in another order), the precomputed turns are never requested and do no harm.

``RunAheadEpisodes`` plays whole episodes of these rows, each in its own environment. When the step requests a turn with
exactly the prompt and seed of a precomputed turn, the engine re-verifies the precomputed turn under the new weights and
promotes the tokens that stay to the rollout. This helps only if the environment gives the same answers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from turntree.agents.verl.playing.player import EpisodePlayer
from turntree.agents.verl.playing.replica_turns import ReplicaTurns
from turntree.agents.verl.serving.turns import TurnPipe

logger = logging.getLogger(__name__)


_COLUMNS = ("index", "env_id", "env_kwargs", "agent_name")  #: columns that a precomputed episode needs


class RowForecast:
    """Predict the trainer's next rows from the rows that it has submitted.

    Args:
        dataset: The trainer's rows, each with its ``index``.
        order: The sampler; each iteration over the sampler yields one epoch's indices into ``dataset``.
        fetched: Rows per batch of the data loader; the loader drops an incomplete last batch.
        batch: Rows per training step.
        last_step: The last training step; no rows are expected after it.
    """

    def __init__(
        self,
        dataset: Sequence[Mapping[str, Any]],
        order: Iterable[int],
        *,
        fetched: int,
        batch: int,
        last_step: int | None = None,
    ) -> None:
        self._rows = dataset
        self._order = order
        self._fetched = fetched
        self._batch = batch
        self._last_step = last_step
        self._indices = [int(dataset[position]["index"]) for position in range(len(dataset))]
        self._chunks = self._load_chunks()
        self._ready: deque[list[int]] = deque()  #: chunks (batches of the data loader) that are expected next

    @classmethod
    def of(cls, config: Any) -> RowForecast:
        from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
        from verl.utils.config import omega_conf_to_dataclass

        data, model = config.data, omega_conf_to_dataclass(config.actor_rollout_ref.model)
        dataset = create_rl_dataset(
            data.train_files,
            data,
            model.tokenizer,
            model.processor,
            is_train=True,
            max_samples=data.get("train_max_samples", -1),
        )
        if data.shuffle and data.get("seed") is None:
            logger.warning("nothing is precomputed: data.shuffle without data.seed makes the next rows unpredictable")
        return cls(
            dataset,
            create_rl_sampler(data, dataset),
            fetched=data.get("gen_batch_size", None) or data.train_batch_size,
            batch=data.train_batch_size,
            last_step=config.trainer.total_training_steps,
        )

    def after(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the expected rows of the step that follows the step of ``rows``; empty if unknown."""
        step = int(rows[0]["global_steps"]) + 1
        if self._last_step is not None and step > self._last_step:
            return []
        if not self._follow([int(row["index"]) for row in rows[-self._fetched :]]):
            return []
        while len(self._ready) * self._fetched < self._batch:
            self._ready.append(next(self._chunks))
        positions = [position for chunk in self._ready for position in chunk][: self._batch]
        expected = (self._rows[position] for position in positions)
        return [{**{name: row[name] for name in _COLUMNS if name in row}, "global_steps": step} for row in expected]

    def _follow(self, submitted: list[int]) -> bool:
        # Search two epochs: the trainer may have resumed anywhere in an epoch.
        for _ in range(2 * max(1, len(self._indices) // self._fetched)):
            chunk = self._ready.popleft() if self._ready else next(self._chunks)
            if [self._indices[position] for position in chunk] == submitted:
                return True
        logger.warning("nothing is precomputed for one step: the submitted rows are not the expected rows")
        return False

    def _load_chunks(self) -> Iterator[list[int]]:
        if len(self._indices) < self._fetched:
            raise ValueError(
                f"the data set has {len(self._indices)} rows, but the data loader takes {self._fetched} rows at a time"
            )
        while True:
            positions = list(self._order)
            for first in range(0, len(positions) - self._fetched + 1, self._fetched):
                yield positions[first : first + self._fetched]


class RunAheadEpisodes:
    """Precompute episodes; ``slots`` is the maximum number of concurrent episodes per replica."""

    def __init__(
        self, player: EpisodePlayer, pipes: Mapping[int, TurnPipe], replicas: ReplicaTurns, *, slots: int
    ) -> None:
        self._player = player
        self._pipes = dict(pipes)
        self._replicas = replicas
        self._max_plays = slots * len(pipes)
        self._plays: set[asyncio.Task[None]] = set()

    async def begin_step(self, step: int) -> None:
        """Stop precomputing for ``step``: from now on its precomputed turns can be promoted to rollouts."""
        for play in self._plays:
            play.cancel()
        calls = (pipe.begin_step(step) for pipe in self._pipes.values())
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, Exception):
                logger.warning("a rollout server could not begin step %d: %s", step, outcome)

    def start(self, rows: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any], *, size: int) -> None:
        """Start to precompute ``size`` episodes of each row with the ``sampling`` parameters of the later step."""
        slots = asyncio.Semaphore(self._max_plays)
        for row in rows:
            for session in range(size):
                task = asyncio.create_task(self._play({**row, "session_id": session}, sampling, slots))
                self._plays.add(task)
                task.add_done_callback(self._plays.discard)

    async def _play(self, row: Mapping[str, Any], sampling: Mapping[str, Any], slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                await self._player.precompute(sampling, row, self._replicas.dialogue())
            except Exception:
                logger.warning("an episode could not be precomputed", exc_info=True)
