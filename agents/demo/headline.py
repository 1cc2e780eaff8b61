"""A run in words and headline numbers, for the report and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from turntree.agents.demo.compared import Comparison, Spread, passes_saved, seconds_saved
from turntree.agents.demo.run_record import RunRecord

_WINDOW = 10
"""Steps that the first and the last figures are averaged over."""


class Figure(NamedTuple):
    """One headline number."""

    name: str
    """What it measures."""
    value: str
    note: str
    """Value to compare it with."""


def story(run: RunRecord) -> str:
    """A summary in two sentences."""
    first, last = _ends([point.success for point in run.points])
    sentence = f"In {len(run.points)} training steps the success rate {_change(first, last)}."
    if run.comparison is None:
        return sentence
    ratio, passes = seconds_saved(run.comparison.last_third).whole, passes_saved(run.comparison.last_third).whole
    effect = f"{ratio:.2f} times as fast" if ratio >= 1 else f"{1 / ratio:.2f} times as slow"
    same = "exactly the same dialogues" if run.comparison.equal else "dialogues that are not all the same"
    return (
        f"{sentence} At the end, speculation took {1 / passes:.0%} of the forward passes and made the engine {effect}, "
        f"with {same}."
    )


def figures(run: RunRecord) -> list[Figure]:
    """The headline numbers."""
    window = min(_WINDOW, len(run.points))
    first, last = _ends([point.success for point in run.points])
    shown = [Figure("success rate", f"{last:.0%}", f"last {window} steps; first {window}: {first:.0%}")]
    drafted = [point.tokens_per_step for point in run.points if point.tokens_per_step is not None]
    if drafted:
        first, last = _ends(drafted)
        shown.append(Figure("tokens per verify step", f"{last:.2f}", f"first steps: {first:.2f}; without drafts: 1"))
    if run.comparison is not None:
        for name, saved in (("forward passes", passes_saved), ("engine seconds", seconds_saved)):
            late, early = saved(run.comparison.last_third), saved(run.comparison.first_third)
            note = f"without / with, last third (middle half of its steps: {_between(late)}); "
            note += f"first third {early.whole:.2f}x ({_between(early)})"
            shown.append(Figure(name, f"{late.whole:.2f}x", note))
    return shown


def spread_text(spread: Spread) -> str:
    """A ratio, and in brackets the quartiles of the single steps' ratios.

    >>> spread_text(Spread(1.5, 1.25, 1.75))
    '1.50 (1.25 to 1.75)'
    """
    return f"{spread.whole:.2f} ({spread.low:.2f} to {spread.high:.2f})"


def effect(comparison: Comparison) -> str:
    """What speculation did in this run, and what it cannot do, in plain words."""
    steps = comparison.last_third
    passes, seconds = passes_saved(steps), seconds_saved(steps)
    drafted, accepted = sum(s.speculative.drafted for s in steps), sum(s.speculative.accepted for s in steps)
    plain = sum(s.plain.seconds for s in steps)
    store = sum(s.speculative.draft_seconds for s in steps) / sum(s.speculative.seconds for s in steps)
    if not drafted:
        return "The engine drafted nothing in the last third: by its own measured passes no draft was worth its cost."
    kept = "The dialogues were the same token for token"
    if not comparison.equal:
        kept = "Some dialogues differ, since the last bits of a logit depend on how many tokens a pass computes"
    return (
        f"In the last third speculation offered the policy {drafted:,} tokens of earlier turns, and {accepted:,} "
        f"of them ({accepted / drafted:.0%}) were the tokens that it sampled. So the engine needed "
        f"{1 / passes.whole:.0%} of the passes through the model and {1 / seconds.whole:.0%} of the {plain:.1f} "
        f"seconds: a pass that checks drafts takes longer than one without, and {store:.0%} of the time went into the "
        f"store of drafts. {kept}: a draft is only a guess of what the policy will sample. It changes how long an "
        "episode takes, and no token. "
        "Speculation cannot make the policy learn more in a step or speed up the update of the weights, and it has "
        "little to offer where the policy samples what it never sampled before."
    )


def _between(spread: Spread) -> str:
    return f"{spread.low:.2f} to {spread.high:.2f}"


def _ends(values: Sequence[float]) -> tuple[float, float]:
    window = min(_WINDOW, len(values))
    return sum(values[:window]) / window, sum(values[-window:]) / window


def _change(first: float, last: float) -> str:
    if abs(last - first) < 0.02:
        return f"stayed at {last:.0%}"
    return f"{'rose' if last > first else 'fell'} from {first:.0%} to {last:.0%}"
