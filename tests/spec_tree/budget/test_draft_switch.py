"""Time beside an engine without drafts, played with seconds by formula: the switch sees a step two steps later."""

import math
import random
from dataclasses import dataclass

import pytest

from turntree.spec_tree.budget.draft_switch import DraftSwitch

LEAST = 0.97


def plain(rows):
    """Seconds of a stock step of a model of 1.5 billion parameters on one GPU, roughly."""
    return 0.0023 + 0.000042 * rows


@dataclass
class Played:
    seconds: float = 0.0
    stock: float = 0.0
    drafted: int = 0
    changes: int = 0

    @property
    def ratio(self):
        return self.stock / self.seconds


class Always:
    def wants(self, rows, *, now):
        return True

    def observe(self, **_):
        pass


class StepByStep(DraftSwitch):
    """Control: the last step decides, whatever was lost."""

    def wants(self, rows, *, now):
        self._left, self._account = 0, float("inf")
        return super().wants(rows, now=now)


def play(switch, *, cost, gain, rows=lambda x: 64, busy=lambda x: 1.0, tokens=200_000, noise=0.05, seed=0):
    """Requests sample ``tokens``; ``cost`` of a step with drafts as a multiple, ``gain`` its tokens of a request.

    All but the cost are functions of the share of the tokens sampled so far, so that two switches meet the same.
    """
    dice, out, left, ahead, was = random.Random(seed), Played(), tokens, [], False
    while left > 0:
        done = 1 - left / tokens
        now = rows(done)
        drafts = switch.wants(now, now=out.seconds)
        multiple = 0.5 * (1.0 + cost) if drafts != was else cost if drafts else 1.0
        more = gain(done) - 1 if drafts else 0.0
        emitted = now + max(0, round(now * more + math.sqrt(now * more * (1 - more / 8)) * dice.gauss(0, 1)))
        took = plain(now) * busy(done) * multiple * math.exp(dice.gauss(0, noise))
        took += 0.05 if dice.random() < 0.001 else 0.0
        out.seconds += took
        out.stock += emitted * (plain(now) * busy(done) + 0.00005) / now
        out.drafted += drafts
        out.changes += drafts != was
        was, left = drafts, left - emitted
        ahead.append({"rows": now, "emitted": emitted, "seconds": took, "drafted": drafts})
        if len(ahead) > 2:
            switch.observe(**ahead.pop(0))
    return out


def falling(done):
    """256 requests, then fewer and fewer, three times."""
    return max(1, round(256 * (1 - 3 * done % 1) ** 2))


BUSY = {
    "steady": lambda done: 1.0,
    "drifts": lambda done: 1 + 0.3 * math.sin(40 * done),
    "another program": lambda done: 1.5 if 0.3 < done < 0.6 else 1.0,
}
ROWS = {"64": lambda done: 64, "4": lambda done: 4, "falling": falling}
LOSING = {
    "nothing is accepted": (1.2, lambda done: 1.0),
    "dear": (3.8, lambda done: 1.15),
    "nearly even": (1.15, lambda done: 1.1),
    "stops": (1.5, lambda done: 4.0 if done < 0.1 else 1.0),
}


@pytest.mark.parametrize("busy", BUSY)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("drafts", LOSING)
def test_drafts_never_cost_more_than_three_hundredths(drafts, rows, busy):
    cost, gain = LOSING[drafts]
    size = 20_000 if rows == "4" else 200_000
    played = play(DraftSwitch(), cost=cost, gain=gain, rows=ROWS[rows], busy=BUSY[busy], tokens=size)
    assert played.ratio >= LEAST


@pytest.mark.parametrize("switch", [Always, StepByStep])
def test_without_windows_and_account_they_do(switch):
    """Control of the test above."""
    cost, gain = LOSING["dear"]
    assert play(switch(), cost=cost, gain=gain).ratio < LEAST


@pytest.mark.parametrize("busy", BUSY)
@pytest.mark.parametrize(("cost", "tokens"), [(1.15, 4.5), (1.6, 3.0), (1.1, 1.6)])
def test_where_drafts_pay_their_gain_is_kept(cost, tokens, busy):
    for rows in ROWS.values():
        size = 40_000 if rows(0) == 4 else 800_000
        load = {"cost": cost, "gain": lambda done: tokens, "rows": rows, "busy": BUSY[busy], "tokens": size}
        assert play(DraftSwitch(), **load).ratio >= 0.95 * play(Always(), **load).ratio


def test_drafts_that_begin_to_pay_are_noticed():
    load = {"cost": 1.2, "gain": lambda done: 1.0 if done < 0.2 else 4.0, "tokens": 600_000}
    assert play(DraftSwitch(), **load).ratio >= 0.95 * play(Always(), **load).ratio
