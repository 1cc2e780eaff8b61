from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='the engines draw with PyTorch: pip install -e ".[local]"')

from launches import Launches, one_launch  # noqa: E402
from pretended_device import DEVICE, pretended_device  # noqa: E402
from sampling_runner import SamplingRunner, request  # noqa: E402

from turntree.agents.engines.drafting import race as race_module  # noqa: E402
from turntree.agents.engines.vllm.drawing import seeded_draws  # noqa: E402
from turntree.agents.engines.vllm.drawing.batch_rows import CurrentRows  # noqa: E402

VOCABULARY, DEEPEST, NONE = 13, 8, -1
FEW, MANY = 16, 256
"""Requests of a step."""


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race_module, "kernel_on", lambda kind: one_launch)


class Inner(torch.nn.Module):
    def forward(self, logits: Any, *_: Any) -> Any:
        return torch.zeros(len(logits), dtype=torch.int64, device=logits.device), None


class Batch:
    def __init__(self, rows: int, unseeded: tuple[int, ...] = ()) -> None:
        self.lengths = [DEEPEST - row % 3 for row in range(rows)]
        make = torch.Generator().manual_seed(rows)
        self.logits = 12 * torch.randn(sum(self.lengths), VOCABULARY, generator=make)
        likely = self.logits.argmax(-1)
        other = torch.randint(VOCABULARY, likely.shape, generator=make)
        self.drafts = torch.where(torch.rand(likely.shape, generator=make) < 0.8, likely, other).to(torch.int32)
        self.bonus = torch.randint(VOCABULARY, (rows, 1), generator=make, dtype=torch.int32)
        self.requests = [request(None if row in unseeded else row, said=row % 5) for row in range(rows)]

    def runner(self, **sampling: Any) -> SamplingRunner:
        made = SamplingRunner(*self.requests, inner=Inner(), device=DEVICE, **sampling)
        self.metadata = made.prepare([[*draft] for draft in self.drafts.split(self.lengths)])
        return made

    def match(self, way: Any) -> tuple[Any, Launches]:
        tokens = torch.zeros(len(self.lengths), DEEPEST + 1, dtype=torch.int32)
        with pretended_device():
            runner = self.runner()
            draws = seeded_draws._Draws(Inner(), runner, CurrentRows(runner))
            tokens, drafts, logits, bonus = (one.to(DEVICE) for one in (tokens, self.drafts, self.logits, self.bonus))
            with Launches() as counted:
                way(draws, tokens, drafts, self.lengths, logits, bonus, NONE)
        return tokens.held, counted

    def sample(self) -> Launches:
        with pretended_device():
            runner = self.runner()
            draws = seeded_draws._Draws(Inner(), runner, CurrentRows(runner))
            logits = self.logits[: len(self.lengths)].to(DEVICE)
            with Launches() as counted:
                draws(logits, {}, None, None)
        return counted


def row_by_row(draws: Any, tokens: Any, drafts: Any, lengths: Any, logits: Any, bonus: Any, placeholder: int) -> None:
    seeded = draws._rows.now()
    rows = seeded.seeded.tolist()
    steps = [np.arange(lengths[row]) for row in rows]
    begins = np.cumsum([0, *lengths])
    nodes = np.concatenate([begins[row] + step for row, step in zip(rows, steps, strict=True)])
    counts = [len(step) for step in steps]
    said = [len(draws._runner.requests[str(row)].output_token_ids) for row in rows]
    positions = np.repeat(said, counts) + np.concatenate(steps)
    laws = logits[torch.from_numpy(nodes).to(DEVICE)]
    drawn = seeded_draws.draw(laws, np.repeat(seeded.seeds, counts), positions).cpu().tolist()
    turn_drafts, ends = drafts.cpu().tolist(), bonus.cpu().tolist()
    for row, count in zip(rows, counts, strict=True):
        mine, drawn = [*drawn[:count], *ends[row]], drawn[count:]
        met = 0
        while met < count and mine[met] == turn_drafts[begins[row] + met]:
            met += 1
        tokens[row] = placeholder
        tokens[row, : met + 1] = torch.tensor(mine[: met + 1], dtype=tokens.dtype, device=DEVICE)


@pytest.mark.parametrize("unseeded", [(), (0, 3, 15)])
def test_matching_launches_as_much_for_many_rows_as_for_few_and_waits_for_nothing(kernel: None, unseeded: Any) -> None:
    few, many = (Batch(rows, unseeded).match(seeded_draws._Draws.match)[1] for rows in (FEW, MANY))
    assert few.launched <= many.launched <= 1.2 * few.launched
    assert few.waits == many.waits == 0


def test_sampling_launches_as_much_for_many_rows_as_for_few_and_waits_for_nothing(kernel: None) -> None:
    few, many = (Batch(rows, (1,)).sample() for rows in (FEW, MANY))
    assert few.launched <= many.launched <= 1.2 * few.launched
    assert few.waits == many.waits == 0


@pytest.mark.parametrize("unseeded", [(), (0, 3, 15)])
def test_all_rows_at_once_get_the_tokens_of_one_row_at_a_time(kernel: None, unseeded: Any) -> None:
    batch = Batch(64, unseeded)
    whole, one_by_one = batch.match(seeded_draws._Draws.match)[0], batch.match(row_by_row)[0]
    assert torch.equal(whole, one_by_one)
    lengths = (whole != NONE).sum(1)
    assert {1, DEEPEST + 1} <= set(lengths.tolist())


def test_a_copy_and_a_launch_for_each_row_are_noticed(kernel: None) -> None:
    """Control: the same tokens, one row at a time."""
    few, many = (Batch(rows).match(row_by_row)[1] for rows in (FEW, MANY))
    assert many.launched > 10 * few.launched
    assert many.waits >= MANY


def test_the_race_by_tensors_launches_more_for_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without the kernel, launches grow once the clocks of a step do not fit at once."""
    monkeypatch.setattr(race_module, "AT_ONCE", 27 * VOCABULARY)
    few, many = (Batch(rows).match(seeded_draws._Draws.match)[1] for rows in (FEW, MANY))
    assert many.launched > 2 * few.launched
