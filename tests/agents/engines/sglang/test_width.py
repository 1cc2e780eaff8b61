from __future__ import annotations

import numpy as np
from draft_trees import draft_trees

from turntree.agents.engines.sglang.width import WidthChooser

CHAINS = [[(token, token - 1) for token in range(7)]] * 4
WIDTHS = (1, 2, 4, 8)


def run(
    seconds_of, accept, steps: int = 300, *, best: float = 0.9, chooser: WidthChooser | None = None
) -> tuple[WidthChooser, list[int]]:
    """A chooser's widths over ``steps`` steps of four requests that are offered chains of seven, of which so many
    are accepted as ``accept`` says of a number."""
    chooser, chosen = chooser or WidthChooser(WIDTHS), []
    offered = draft_trees(*CHAINS, last_probability=best - 0.01)
    for _ in range(steps):
        width = chooser.choose(offered)
        nodes = 4 * (width - 1)
        chooser.observe(
            rows=4,
            width=width,
            estimates=np.full(nodes, best),
            accepted=np.full(nodes, accept) if isinstance(accept, bool) else accept(nodes),
            seconds=seconds_of(4 * width),
        )
        chosen.append(width)
    return chooser, chosen


def test_nothing_offered_is_a_plain_step():
    assert WidthChooser(WIDTHS).choose(draft_trees([], [])) == 1


def test_accepted_drafts_on_a_flat_machine_make_trees_wide():
    _, chosen = run(lambda tokens: 0.01, accept=True)
    assert chosen[-100:].count(8) > 95


def test_drafts_that_are_never_accepted_are_given_up():
    _, chosen = run(lambda tokens: 0.01 + 0.001 * tokens, accept=False)
    assert chosen[-100:].count(1) > 85


def test_drafts_that_lose_on_a_busy_machine_are_given_up_though_they_are_accepted_now_and_then():
    rng = np.random.default_rng(0)
    _, chosen = run(lambda tokens: 0.001 * tokens, lambda nodes: rng.random(nodes) < 0.2, steps=400, best=0.5)
    assert chosen[-100:].count(1) > 85


def test_a_policy_that_begins_to_agree_is_noticed():
    chooser, _ = run(lambda tokens: 0.01 + 0.0001 * tokens, accept=False)
    _, chosen = run(lambda tokens: 0.01 + 0.0001 * tokens, accept=True, steps=600, chooser=chooser)
    assert chosen[-50:].count(8) > 40


def test_a_width_beyond_what_is_offered_is_not_chosen():
    chooser = WidthChooser(WIDTHS)
    assert all(chooser.choose(draft_trees([(5, -1)], [(6, -1)])) <= 2 for _ in range(50))


def test_two_choosers_fed_alike_choose_alike_and_told_other_seconds_they_need_not():
    _, here = run(lambda tokens: 1 + tokens / 256, accept=True)
    _, there = run(lambda tokens: 1 + tokens / 256, accept=True)
    _, slow = run(lambda tokens: 0.01 * tokens**2, accept=True)
    assert here == there
    assert here != slow
