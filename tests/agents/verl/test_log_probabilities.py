from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from turntree.agents.verl import log_probabilities
from turntree.agents.verl.log_probabilities import ChosenLogProbabilities

ROWS, VOCABULARY = 7, 11


class Large(TorchDispatchMode):
    """Counts new tensors with as many elements as the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor) and one.numel() >= ROWS * VOCABULARY:
                self.storages[one.untyped_storage().data_ptr()] = one
        return made


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return logits, torch.arange(ROWS) % VOCABULARY


def plainly(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.gather(-1, labels[:, None])[:, 0] - logits.logsumexp(-1)


@pytest.mark.parametrize("rows", [1, 2, ROWS, 100])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(log_probabilities, "_CHUNK_LOGITS", rows * VOCABULARY)
    logits, labels = drawn()
    weights = torch.linspace(-1, 1, ROWS)
    ours, theirs = ChosenLogProbabilities.apply(logits, labels), plainly(logits, labels)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad((x * weights).sum(), logits)[0] for x in (ours, theirs)))


def test_the_gradient_is_the_only_tensor_as_large_as_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_probabilities, "_CHUNK_LOGITS", VOCABULARY)
    made = {}
    for name, compute in (("ours", ChosenLogProbabilities.apply), ("plainly", plainly)):
        logits, labels = drawn()
        with Large() as large:
            torch.autograd.grad(compute(logits, labels).sum(), logits)
        made[name] = len(large.storages.keys() - {logits.data_ptr()})
    assert made["ours"] == 1
    assert made["plainly"] > 2, "the control"


def test_no_rows_have_no_log_probabilities() -> None:
    assert ChosenLogProbabilities.apply(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)).shape == (0,)
