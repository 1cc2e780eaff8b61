import math
import random
from dataclasses import dataclass

import pytest

from turntree.spec_tree.budget.draft_switch import DraftSwitch
from turntree.spec_tree.budget.plain_seconds import PlainSeconds

LEAST = 0.97


def plain(rows):
    """Return the seconds of a plain step of a 1.5B model on one GPU, roughly."""
    return 0.0023 + 0.000042 * rows


@dataclass
class Played:
    seconds: float = 0.0
    undrafted: float = 0.0
    drafted: int = 0
    changes: int = 0

    @property
    def ratio(self):
        return self.undrafted / self.seconds


class Always:
    def wants(self, rows, *, now):
        return True

    def observe(self, **_):
        pass


def play(switch, *, cost, gain, rows=lambda x: 64, busy=lambda x: 1.0, tokens=200_000, noise=0.05, seed=0):
    """Sample ``tokens``; ``cost`` of a step with drafts is a multiple, ``gain`` its tokens per request.

    All but the cost depend on the fraction of tokens sampled so far, so that two switches face the same load.
    The switch sees a step two steps later.
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
        out.undrafted += emitted * (plain(now) * busy(done) + 0.00005) / now
        out.drafted += drafts
        out.changes += drafts != was
        was, left = drafts, left - emitted
        ahead.append({"rows": now, "emitted": emitted, "seconds": took, "drafted": drafts})
        if len(ahead) > 2:
            switch.observe(**ahead.pop(0))
    return out


def falling(done):
    """Return request counts that fall from 256, twice."""
    return max(1, round(256 * (1 - 2 * done % 1) ** 2))


ROWS = {"64": lambda done: 64, "4": lambda done: 4, "falling": falling}
BUSY = {
    "steady": lambda done: 1.0,
    "drifts": lambda done: 1 + 0.3 * math.sin(40 * done),
    "another program": lambda done: 1.5 if 0.3 < done < 0.6 else 1.0,
}
LOADS = [("64", "drifts"), ("64", "another program"), ("4", "steady"), ("falling", "drifts")]
LOSING = {
    "nothing is accepted": (1.2, lambda done: 1.0),
    "dear": (3.8, lambda done: 1.15),
    "nearly even": (1.15, lambda done: 1.1),
    "stops": (1.5, lambda done: 4.0 if done < 0.1 else 1.0),
}
PAYING = {"much": (1.15, 4.5), "though dear": (1.6, 3.0), "a little": (1.1, 1.6)}


def load(cost, gain, rows, busy, tokens=150_000):
    few = {"64": tokens, "4": tokens // 10, "falling": tokens // 2}
    return {"cost": cost, "gain": gain, "rows": ROWS[rows], "busy": BUSY[busy], "tokens": few[rows]}


@pytest.mark.parametrize(("rows", "busy"), LOADS)
@pytest.mark.parametrize("drafts", LOSING)
def test_drafts_never_cost_more_than_three_hundredths(drafts, rows, busy):
    assert play(DraftSwitch(), **load(*LOSING[drafts], rows, busy)).ratio >= LEAST


@pytest.mark.parametrize("drafts", ["nothing is accepted", "dear"])
@pytest.mark.parametrize("switch", [Always(), DraftSwitch(loss_share=1.0)])
def test_always_on_or_with_an_endless_account_they_do(switch, drafts):
    """Controls of the test above."""
    assert play(switch, **load(*LOSING[drafts], "64", "steady")).ratio < LEAST


@pytest.mark.parametrize(("rows", "busy"), LOADS)
@pytest.mark.parametrize("drafts", PAYING)
def test_where_drafts_pay_nearly_all_of_their_gain_is_kept(drafts, rows, busy):
    cost, tokens = PAYING[drafts]
    paying = load(cost, lambda done: tokens, rows, busy, 300_000)
    assert play(DraftSwitch(), **paying).ratio >= 0.96 * play(Always(), **paying).ratio


def test_drafts_that_begin_to_pay_are_noticed():
    begin = load(1.2, lambda done: 1.0 if done < 0.2 else 4.0, "64", "steady", 400_000)
    assert play(DraftSwitch(), **begin).ratio >= 0.96 * play(Always(), **begin).ratio


def test_nothing_is_drafted_before_steps_without_drafts_were_measured_and_then_a_window_is_tried():
    modes = []

    class Watched(DraftSwitch):
        def wants(self, rows, *, now):
            modes.append(super().wants(rows, now=now))
            return modes[-1]

    play(Watched(), **load(2.0, lambda done: 1.0, "64", "steady", 64 * 60))
    assert modes[:20] == [False] * 20
    begin, end = modes.index(True), len(modes) - modes[::-1].index(True)
    assert begin < 24
    assert end - begin < 16, "a window that loses much ends at once"


def test_a_line_through_the_classes_seen_tells_of_others_and_a_single_class_from_below():
    known = PlainSeconds()
    assert known.seconds(64) == 0
    for rows in (256, 32):
        for _ in range(16):
            known.observe(rows, plain(rows), 0)
        known.settle()
        if rows == 256:
            assert known.seconds(300) == known.seconds(256) == pytest.approx(plain(256))
            assert known.seconds(64) == pytest.approx(plain(256) / 4)
    for rows in (16, 100, 400):
        assert known.seconds(rows) == pytest.approx(plain(rows))
    for _ in range(16):
        known.observe(32, 2 * plain(32), 0)
    known.begin()
    for _ in range(16):
        known.observe(32, 2 * plain(32), 0)
    assert known.settle() == pytest.approx(2.0)
    assert known.seconds(256) == pytest.approx(2 * plain(256)), "the machine became busy, for all steps"


def test_prompts_cost_what_they_take_and_steps_that_are_mostly_prompts_tell_nothing():
    known = PlainSeconds()
    for step in range(200):
        tokens = (0, 0, 300, 2000)[step % 4]
        known.observe(16, plain(16) + 1e-5 * tokens, tokens)
        if step % 16 == 15:
            known.settle()
    assert known.seconds(16) == pytest.approx(plain(16), rel=0.05)
    assert known.by_prompt_token == pytest.approx(1e-5, rel=0.1)
    assert known.is_informative(16, 200)
    assert not known.is_informative(16, 2000)


def test_steps_without_drafts_are_measured_again_a_day_later_and_figures_show_where_the_time_went():
    switch, paying = DraftSwitch(), load(1.15, lambda done: 4.5, "64", "steady", 20_000)
    played = play(switch, **paying)
    assert switch.wants(64, now=played.seconds + 1)
    assert not switch.wants(64, now=played.seconds + 1 + 86_400)
    switch = DraftSwitch()
    played = play(switch, **load(1.15, lambda done: 4.5, "64", "steady", 50_000))
    figures = switch.figures()
    assert figures["seconds_on"] + figures["seconds_off"] == pytest.approx(played.seconds, rel=0.02)
    assert figures["seconds_on"] > 0.8 * played.seconds
    assert figures["trials"] >= 1
    assert figures["seconds_lost"] == pytest.approx(played.seconds - played.undrafted, rel=0.1)
    assert figures["plain_ms_64"] == pytest.approx(1e3 * plain(64), rel=0.05)
