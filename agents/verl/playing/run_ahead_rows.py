"""Forecast of the rows that verl's trainer will request next.

The trainer's data loader takes rows in an order that its configuration fixes:
one after the other, or shuffled by a seeded generator. The same data set and the
same sampler give the same order here; each batch that the trainer submits shows
where in it the trainer is, also after a resume.

If the forecast is wrong (shuffling without a seed, rows taken out of turn), the
precomputed turns are never requested, and nothing else follows.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

logger = logging.getLogger(__name__)

_USED = ("index", "env_id", "env_kwargs", "agent_name")
"""Columns that a precomputed episode needs."""


class RowForecast:
    """Follows the trainer through its data.

    Args:
        dataset: The trainer's rows, each with its ``index``.
        order: The sampler: every pass over it is an epoch's order of indices in ``dataset``.
        fetched: Rows that the loader takes at a time; the remainder of an epoch is dropped.
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
        self._indices = [int(dataset[place]["index"]) for place in range(len(dataset))]
        self._chunks = self._loaded()
        self._ready: deque[list[int]] = deque()

    @classmethod
    def of(cls, config: Any) -> RowForecast:
        """The forecast for a trainer with verl's whole configuration ``config``."""
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
            logger.warning("data.shuffle without data.seed: the next rows are not known, and nothing is precomputed")
        return cls(
            dataset,
            create_rl_sampler(data, dataset),
            fetched=data.get("gen_batch_size", None) or data.train_batch_size,
            batch=data.train_batch_size,
            last_step=config.trainer.total_training_steps,
        )

    def after(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The rows of the step after the one that ``rows`` were submitted for, as far as they are known."""
        step = int(rows[0]["global_steps"]) + 1
        if self._last_step is not None and step > self._last_step:
            return []
        if not self._follow([int(row["index"]) for row in rows[-self._fetched :]]):
            return []
        while len(self._ready) * self._fetched < self._batch:
            self._ready.append(next(self._chunks))
        places = [place for chunk in self._ready for place in chunk][: self._batch]
        return [{**self._needed(place), "global_steps": step} for place in places]

    def _follow(self, submitted: list[int]) -> bool:
        """Advance past the rows that were just submitted; returns whether they were found."""
        for _ in range(2 * max(1, len(self._indices) // self._fetched)):
            chunk = self._ready.popleft() if self._ready else next(self._chunks)
            if [self._indices[place] for place in chunk] == submitted:
                return True
        logger.warning("the submitted rows are not where they were expected; nothing is precomputed for one step")
        return False

    def _needed(self, place: int) -> dict[str, Any]:
        row = self._rows[place]
        return {name: row[name] for name in _USED if name in row}

    def _loaded(self) -> Iterator[list[int]]:
        if len(self._indices) < self._fetched:
            raise ValueError(f"the data set has {len(self._indices)} rows, the loader takes {self._fetched} at a time")
        while True:
            places = list(self._order)
            for first in range(0, len(places) - self._fetched + 1, self._fetched):
                yield places[first : first + self._fetched]
