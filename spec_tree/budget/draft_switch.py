"""Switch drafting on only where drafts make the engine faster, and bound the time lost where they do not.

The switch compares steps with drafts to ``PlainSeconds``, learned from steps without drafts (plain steps). A decision
holds for a window of steps, because an asynchronous engine shows its effect only some steps later. Drafts stay on while
the lower bound of their gain, for a similar number of requests, is high enough. Otherwise they are tried now and then.
A ``LossAccount`` pays for time that drafts lose; while the account is empty, drafts are off.
Not covered: which tokens are drafted, and how many (``draft_budget``).
"""

from __future__ import annotations

from math import sqrt

from turntree.spec_tree.budget.plain_seconds import PlainSeconds
from turntree.spec_tree.budget.step_account import LossAccount

_KEPT = 1 - 1 / 32  #: factor on the statistics of steps with drafts after one more step
_ENOUGH = 8.0  #: steps with drafts after which their gain is known
_OWN_LOSS = 4.0  #: loss, in plain steps, at which a window with drafts ends early
_HICCUP = 4.0  #: cap of the seconds that count for one step, as a multiple of the usual seconds
_UNTRIED, _LEAST = 1.0, 0.05  #: assumed loss of a step with drafts, in plain steps: before any trial, and minimum
#: if drafts save more than the fraction ``_PLENTY``, ``_AFTER`` is the minimum time between measurements of plain steps
_AFTER, _PLENTY = 5.0, 1 / 3
_SPED_UP = 1.25  #: if drafts got this much faster, relative to plain steps, plain steps are measured sooner
_PACE = 1 / 16  #: weight of the newest step in the average ``_pace``
_PAUSE = 60.0  #: idle seconds after which plain steps are measured at once: the machine may have other work now


class _Gain:
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
        # tokens per second with drafts, as a multiple of plain steps, minus one standard error
        return (self.plain - sqrt(max(self.spread, 0.0))) / self.took if self.took > 0 else 0.0


class DraftSwitch:
    """Decides whether steps may have drafts.

    Example:
        >>> switch = DraftSwitch()
        >>> switch.wants(4, now=0.0)
        False
    """

    def __init__(self, *, loss_share: float = 0.01, least_gain: float = 1.05, window: int = 16, lag: int = 2) -> None:
        """Start without drafts.

        Drafts may lose ``loss_share`` of the time. They stay on if they reach ``least_gain`` times the tokens per
        second of plain steps. Decisions are ``window`` steps apart. The first ``lag`` steps after a change are not
        counted, because an asynchronous engine had already scheduled them.
        """
        self.plain = PlainSeconds()
        self._share = loss_share
        self._account = LossAccount(loss_share)
        self._least = least_gain
        self._window = window
        self._lag = lag
        self._on = False
        self._left = window
        self._own = 0.0  #: seconds lost in the current window
        self._gains: dict[int, _Gain] = {}
        self._run = _Gain()  #: statistics since drafts were switched on, for any number of requests
        self._since = 0.0  #: seconds of steps with drafts since plain steps were last measured
        #: seconds of steps with drafts relative to plain steps: recently, and when plain steps were last measured
        self._pace = self._first_pace = 0.0
        self._refreshing = False
        self._was, self._same = False, 0
        self._asked: float | None = None
        self._seconds = [0.0, 0.0]
        self._windows = [0, 0]
        self._trials = 0

    def wants(self, rows: int, *, now: float) -> bool:
        """Return whether the next step of ``rows`` running requests may have drafts; ``now`` is in seconds."""
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
            # Measuring plain steps forgoes the saving of one window: the more drafts save, the rarer the measurements.
            saved = 1 - self._run.took / self._run.plain if self._run.plain else 0.0
            often = (self._window + self._lag) * plain * saved / self._share
            if self._pace < self._first_pace / _SPED_UP:
                often /= 2
            elif saved > _PLENTY:
                often = max(often, _AFTER)
            self._refreshing = self._since >= often
            kept = self._run.lower() >= self._least and self._own <= _OWN_LOSS * plain
            return kept and self._account.open and not self._refreshing
        gain = self._near(rows)
        if gain is not None and gain.lower() >= self._least:
            if not self._refreshing:
                self._run = _Gain()
            return self._account.open
        # A trial needs a balance that covers its worst case: one window, plus the lag before and after it.
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
        own = (rows - 1).bit_length()
        known = [kind for kind, gain in self._gains.items() if gain.weight >= _ENOUGH or kind == own]
        return self._gains[min(known, key=lambda kind: abs(kind - own))] if known else None

    def observe(self, *, rows: int, emitted: int, seconds: float, drafted: bool, prompt_tokens: int = 0) -> None:
        """Learn from a step; ``seconds`` is the time since the last step ended or work arrived."""
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
        self._since += seconds
        plain = self.plain.seconds(rows)
        if plain <= 0 or not self.plain.is_informative(rows, prompt_tokens):
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
        ratio = self.plain.settle()
        if self._since > 0:
            gain = self._gains.get((rows - 1).bit_length())
            self._account.pay(-max(0.0, ratio - 1) * self._run.plain)
            self._run.plain *= ratio
            if gain is not None:
                gain.plain *= ratio
        self._since = self._pace = self._first_pace = 0.0

    def figures(self) -> dict[str, float]:
        """Return statistics in seconds, windows, trials, and milliseconds of plain steps by batch size."""
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
