from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from launches import Launches, one_launch
from pretended_device import DEVICE, pretended_device

from turntree.agents.engines.drafting import race as race_module
from turntree.agents.engines.sglang.drawing.draws import Noises, draw_at_nodes

VOCABULARY, DEEPEST = 13, 8
FEW, MANY = 16, 256
"""Requests of a pass."""


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race_module, "kernel_on", lambda kind: one_launch)


class Cuts(SimpleNamespace):
    def __init__(self, rows: int, *, top_k: bool) -> None:
        super().__init__(
            temperatures=torch.full((rows, 1), 0.7).to(DEVICE),
            top_ks=torch.full((rows,), 5).to(DEVICE),
            top_ps=torch.ones(rows).to(DEVICE),
            min_ps=torch.zeros(rows).to(DEVICE),
            need_top_k_sampling=top_k,
            need_top_p_sampling=False,
            need_min_p_sampling=False,
        )


def at_nodes(rows: int, *, top_k: bool, drafted: list[int] | None = None, unseeded: int = -1) -> tuple[Any, Launches]:
    width = DEEPEST + 1
    every = np.arange(rows)
    noises = Noises(every >= 0, every.astype(np.uint64), every == unseeded, every < 0)
    logits = torch.randn(rows * width, VOCABULARY, generator=torch.Generator().manual_seed(0))
    with pretended_device():
        values, positions = logits.to(DEVICE), torch.arange(width).repeat(rows).to(DEVICE)
        sampling = Cuts(rows, top_k=top_k)
        with Launches() as counted:
            drawn = draw_at_nodes(values, sampling, noises, positions, width, drafted)
    return drawn.held, counted


@pytest.mark.parametrize("top_k", [False, True])
def test_nodes_are_drawn_with_as_many_launches_whatever_the_rows(top_k: bool) -> None:
    few, many = (at_nodes(rows, top_k=top_k, unseeded=1)[1] for rows in (FEW, MANY))
    assert few.launched <= many.launched <= 1.2 * few.launched
    assert few.waits == many.waits == 0


def test_padding_is_not_raced_and_changes_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = at_nodes(3, top_k=False)
    raced = []

    def counting(values: Any, *rest: Any, **options: Any) -> Any:
        raced.append(len(values))
        return one_launch(values, *rest, **options)

    monkeypatch.setattr(race_module, "kernel_on", lambda kind: counting)
    drawn, _ = at_nodes(3, top_k=False, drafted=[DEEPEST, 0, 2])
    assert raced == [DEEPEST + 1 + 1 + 3]
    for row, count in enumerate([DEEPEST, 0, 2]):
        assert torch.equal(drawn[row, : count + 1], whole[row, : count + 1])
        assert not drawn[row, count + 1 :].any()
