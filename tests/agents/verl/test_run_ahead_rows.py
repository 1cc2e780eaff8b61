from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from turntree.agents.verl.run_ahead_rows import RowForecast

ROWS = [
    {"index": 10 + place, "env_id": "e", "env_kwargs": "{}", "agent_name": "a", "raw_prompt": []} for place in range(7)
]


class Shuffled:
    """Another order in every epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter([(place * 3 + self.epoch) % 7 for place in range(7)])


def forecast(order: Any = range(7), *, fetched: int = 2, batch: int = 2, **settings: Any) -> RowForecast:
    return RowForecast(ROWS, order, fetched=fetched, batch=batch, **settings)


def submitted(*indices: int, step: int = 1) -> list[dict[str, Any]]:
    return [{"index": index, "global_steps": step} for index in indices]


def indices(rows: list[dict[str, Any]]) -> list[int]:
    return [row["index"] for row in rows]


def test_the_rows_of_the_next_step_follow_those_of_this_one() -> None:
    rows = forecast().after(submitted(10, 11, step=4))
    assert rows == [
        {"index": index, "env_id": "e", "env_kwargs": "{}", "agent_name": "a", "global_steps": 5} for index in (12, 13)
    ]


def test_an_epoch_ends_where_the_loader_drops_the_rest() -> None:
    known = forecast()
    for first in (10, 12):
        assert indices(known.after(submitted(first, first + 1))) == [first + 2, first + 3]
    assert indices(known.after(submitted(14, 15))) == [10, 11]
    assert indices(known.after(submitted(10, 11))) == [12, 13]


def test_a_resumed_trainer_is_found_in_the_middle() -> None:
    assert indices(forecast().after(submitted(12, 13))) == [14, 15]


def test_every_epochs_own_order_is_followed() -> None:
    known, trainer = forecast(Shuffled()), Shuffled()
    batches: list[list[int]] = []
    for _ in range(3):
        places = list(trainer)
        batches += [[10 + place for place in places[first : first + 2]] for first in (0, 2, 4)]
    for batch, following in pairwise(batches):
        assert indices(known.after(submitted(*batch))) == following


def test_rows_that_a_group_filter_takes_one_by_one_are_followed() -> None:
    known = forecast(fetched=1, batch=2)
    assert indices(known.after(submitted(10, 11))) == [12, 13]
    assert indices(known.after(submitted(12))) == [13, 14]
    assert indices(known.after(submitted(13, 14))) == [15, 16]


def test_rows_that_are_nowhere_give_no_forecast_and_spoil_none() -> None:
    known = forecast()
    assert known.after(submitted(99, 98)) == []
    assert indices(known.after(submitted(12, 13))) == [14, 15]


def test_nothing_follows_the_last_step() -> None:
    known = forecast(last_step=2)
    assert known.after(submitted(10, 11, step=1)) != []
    assert known.after(submitted(12, 13, step=2)) == []


def test_a_data_set_smaller_than_a_fetch_is_refused() -> None:
    with pytest.raises(ValueError, match="has 7 rows, the loader takes 8"):
        forecast(fetched=8, batch=8).after(submitted(10))
