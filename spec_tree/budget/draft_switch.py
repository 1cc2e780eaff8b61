"""The switch of drafts: on only where it is faster than the engine without them, and a bounded loss where it is not.

Steps with drafts are compared with what the same engine does without any, which ``PlainSeconds`` knows from steps that
had none. Decisions hold for a window of steps, since an engine that works ahead shows one only some steps later. Drafts
are on where the last steps with drafts of about as many requests gained enough, by a lower bound; else they are tried
now and then. What drafts lose, in trials or later, is paid from a ``LossAccount``; while it is empty, drafts are off.

Not here: which drafts, and how many (``draft_budget``).
"""

from __future__ import annotations

from math import sqrt

from turntree.spec_tree.budget.loss_account import LossAccount
from turntree.spec_tree.budget.plain_seconds import PlainSeconds

_KEPT = 1 - 1 / 32
"""Share of what is known of steps with drafts that remains after one more."""
_ENOUGH = 8.0
"""Steps with drafts after which their gain is known."""
_OWN_LOSS = 4.0
"""Loss of a window that ends it at once, in steps without drafts."""
_HICCUP = 4.0
"""Cap of a step's seconds, as a multiple of the usual ones."""
_UNTRIED, _LEAST = 1.0, 0.05
"""Assumed loss of a step with drafts, in steps without: before the first, and at least."""
_AFTER, _PLENTY = 5.0, 1 / 3
"""Least seconds with drafts until the steps without are measured anew, where drafts spare this share of the time."""
_SPED_UP = 1.25
"""Factor by which steps with drafts become faster, beside those without, after which they are measured sooner."""
_PACE = 1 / 16
"""Weight of a step in the pace of steps with drafts."""
_PAUSE = 60.0
"""Seconds without a step after which they are, at once: the machine may have had other work."""


class _Gain:
    """What recent steps with drafts took, beside the steps without that sample as many tokens."""

    __slots__ = ("plain", "spread", "took", "weight")

    def __init__(self) -> None:
        self.weight = self.plain = self.took = self.spread = 0.0

    def add(self, plain: float, took: float) -> None:
        gained = plain - took
        before = (self.plain - self.took) / self.weight if self.weight else gained
        self.forget(_KEPT)
        self.weight, self.plain, self.took = self.weight + 1, self.plain + plain, self.took + took
        self.spread += (gained - before) * (gained - (self.plain - self.took) / self.weight)

    def forget(self, kept: float) -> None:
        self.weight, self.plain, self.took, self.spread = (
            kept * value for value in (self.weight, self.plain, self.took, self.spread)
        )

    def lower(self) -> float:
        """Tokens a second beside those without drafts, less a standard error."""
        return (self.plain - sqrt(max(self.spread, 0.0))) / self.took if self.took > 0 else 0.0


class DraftSwitch:
    """Decides whether steps may have drafts.

    Example:
        >>> switch = DraftSwitch()
        >>> switch.wants(4, now=0.0)
        False
    """

    def __init__(self, *, loss_share: float = 0.01, least_gain: float = 1.05, window: int = 16, lag: int = 2) -> None:
        """Start without knowledge, and without drafts.

        Args:
            loss_share: Share of the time that drafts may lose.
            least_gain: Tokens a second, as a multiple of those without drafts, for which they are switched on.
            window: Least steps between two decisions.
            lag: First steps after a change that belong to neither, as the engine works ahead.
        """
        self.plain = PlainSeconds()
        self._share = loss_share
        self._account = LossAccount(loss_share)
        self._least = least_gain
        self._window = window
        self._lag = lag
        self._on = False
        self._left = window
        self._own = 0.0
        """Loss of the current window."""
        self._gains: dict[int, _Gain] = {}
        self._run = _Gain()
        """Of the drafts since they were switched on, whatever the number of requests."""
        self._since = 0.0
        """Seconds with drafts since the steps without were measured."""
        self._pace = self._first_pace = 0.0
        """Seconds of recent steps with drafts beside those without, now and when they were measured."""
        self._refreshing = False
        self._was, self._same = False, 0
        self._asked: float | None = None
        self._seconds = [0.0, 0.0]
        self._windows = [0, 0]
        self._trials = 0

    def wants(self, rows: int, *, now: float) -> bool:
        """Whether the next step of ``rows`` running requests may have drafts, at ``now`` on a clock of seconds."""
        if self._asked is not None and now - self._asked > _PAUSE and self._on:
            self._since, self._left = float("inf"), 0
        self._asked = now
        if self._left <= 0 and rows > 0:
            on = self._decide(rows)
            self._left, self._own = self._window, 0.0
            self._windows[on] += 1
            self._on = on
        return self._on

    def _decide(self, rows: int) -> bool:
        plain = self.plain.seconds(rows)
        if plain <= 0:
            return False
        if self._on:
            spared = 1 - self._run.took / self._run.plain if self._run.plain else 0.0
            often = (self._window + self._lag) * plain * spared / self._share
            if self._pace < self._first_pace / _SPED_UP:
                often /= 2
            elif spared > _PLENTY:
                often = max(often, _AFTER)
            self._refreshing = self._since >= often
            kept = self._run.lower() >= self._least and self._own <= _OWN_LOSS * plain
            return kept and self._account.open and not self._refreshing
        gain = self._near(rows)
        if gain is not None and gain.lower() >= self._least:
            if not self._refreshing:
                self._run = _Gain()
            return self._account.open
        lost = _UNTRIED if gain is None else max(_LEAST, gain.took / gain.plain - 1)
        worst = plain * (min(_OWN_LOSS, self._window * lost) + 2 * self._lag * lost)
        if self._account.left < min(worst, self._account.most):
            return False
        self._trials += 1
        self._run = _Gain()
        for kind in {(rows - 1).bit_length()} & self._gains.keys():
            self._gains[kind].forget(0.25)
        return True

    def _near(self, rows: int) -> _Gain | None:
        """Of the nearest class in which drafts were measured."""
        own = (rows - 1).bit_length()
        known = [kind for kind, gain in self._gains.items() if gain.weight >= _ENOUGH or kind == own]
        return self._gains[min(known, key=lambda kind: abs(kind - own))] if known else None

    def observe(self, *, rows: int, emitted: int, seconds: float, drafted: bool, prompt_tokens: int = 0) -> None:
        """Learn from a step.

        Args:
            seconds: Wall time since the step before ended, or since there was something to do.
        """
        self._seconds[drafted] += seconds
        self._same = self._same + 1 if drafted == self._was else 1
        self._was = drafted
        self._account.step(seconds, plain=self.plain.most)
        if rows <= 0:
            return
        settled = self._same > self._lag
        if drafted or not settled:
            self._weigh(rows, emitted, seconds, prompt_tokens, learns=drafted and settled)
            measured = True
        else:
            if self._same == self._lag + 1:
                self.plain.begin()
            measured = self.plain.observe(rows, seconds, prompt_tokens)
        if settled and drafted == self._on and measured:
            self._left -= 1
            if self._left <= 0 and not self._on:
                self._renew(rows)

    def _weigh(self, rows: int, emitted: int, seconds: float, prompt_tokens: int, *, learns: bool) -> None:
        """Charge what a step lost, or credit what it gained."""
        self._since += seconds
        plain = self.plain.seconds(rows)
        if plain <= 0 or not self.plain.tells(rows, prompt_tokens):
            return
        usual = self._run.took / self._run.weight if self._run.weight >= _ENOUGH else plain
        prompts = self.plain.by_prompt_token * prompt_tokens
        took = min(seconds - prompts, _HICCUP * usual)
        without = emitted * plain / rows
        self._account.pay(took - without)
        if not learns:
            return
        kind = (rows - 1).bit_length()
        for gain in (self._run, self._gains.setdefault(kind, _Gain())):
            gain.add(without, took)
        self._pace += _PACE * (took / plain - self._pace) if self._pace else took / plain
        self._first_pace = self._first_pace or self._pace
        self._own += took - without
        if self._own > _OWN_LOSS * plain:
            self._left = 0

    def _renew(self, rows: int) -> None:
        """Believe the steps without drafts just measured, and weigh the last steps with drafts by them."""
        ratio = self.plain.settle()
        if self._since > 0:
            gain = self._gains.get((rows - 1).bit_length())
            self._account.pay(-max(0.0, ratio - 1) * self._run.plain)
            self._run.plain *= ratio
            if gain is not None:
                gain.plain *= ratio
        self._since = self._pace = self._first_pace = 0.0

    def figures(self) -> dict[str, float]:
        """What the switch did so far, in seconds, windows and trials, and milliseconds of steps without drafts."""
        return {
            "seconds_on": self._seconds[True],
            "seconds_off": self._seconds[False],
            "windows_on": self._windows[True],
            "windows_off": self._windows[False],
            "trials": self._trials,
            "seconds_lost": self._account.lost,
            "seconds_account": self._account.left,
            **{f"plain_ms_{most}": 1e3 * seconds for most, seconds in self.plain.knots.items()},
        }
