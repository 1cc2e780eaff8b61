"""Switch drafting on only where drafts make the engine faster, and bound the time lost where they do not.

The gain of a draft length is known without trying it: expected tokens (``AgreementRate``, also learned while drafts are
off) divided by the cost in plain steps, which are steps without drafts (``DraftedCost``, ``PlainSeconds``). The switch
takes the length with the highest gain, or none. Trials only check the costs. An engine that reports neither agreement
nor costs gets trials instead: drafts stay on while the gain that a trial showed is high enough.

A decision holds for a window of steps, because an asynchronous engine shows its effect only some steps later.
A ``LossAccount`` pays for time that drafts lose; while the account is empty, drafts are off.
Not covered: which tokens are drafted, and how many (``draft_budget``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from turntree.spec_tree.budget.draft_agreement import AgreementRate, DraftAgreement
from turntree.spec_tree.budget.drafted_cost import DraftedCost
from turntree.spec_tree.budget.measured_gain import MeasuredGain
from turntree.spec_tree.budget.plain_seconds import PlainSeconds
from turntree.spec_tree.budget.step_account import LossAccount
from turntree.spec_tree.budget.switch_report import SwitchReport

_ENOUGH = 8.0  #: steps with drafts after which their gain is known
_OWN_LOSS = 4.0  #: loss, in plain steps, at which a window with drafts ends early
_HICCUP = 4.0  #: cap of the seconds that count for one step, as a multiple of the usual seconds
_UNTRIED, _LEAST = 1.0, 0.05  #: assumed loss of a step with drafts, in plain steps: before any trial, and minimum
#: if drafts save more than the fraction ``_PLENTY``, ``_AFTER`` is the minimum time between measurements of plain steps
_AFTER, _PLENTY = 5.0, 1 / 3
_SPED_UP = 1.25  #: if drafts got this much faster, relative to plain steps, plain steps are measured sooner
_PACE = 1 / 16  #: weight of the newest step in the average ``_pace``
_IDLE = 60.0  #: idle seconds after which plain steps are measured at once: the machine may have other work now
#: If costs are known, seconds of drafted steps between two measurements of plain steps, and between two trials.
_SELDOM = 60.0
#: a step is a pause, not the engine's work, if it takes so many times the usual seconds, and at least so many seconds
_PAUSED = 8.0, 0.2

logger = logging.getLogger(__name__)


class DraftSwitch:
    """Decides how long the drafts of a step may be.

    Example:
        >>> switch = DraftSwitch()
        >>> switch.width(4, now=0.0)
        0
    """

    def __init__(
        self,
        *,
        longest: int = 8,
        loss_share: float = 0.01,
        least_gain: float = 1.05,
        window: int = 16,
        lag: int = 2,
    ) -> None:
        """Start without drafts.

        ``longest`` is the draft length while costs are unknown. Drafts may lose ``loss_share`` of the time. They stay
        on if they reach ``least_gain`` times the tokens per second of plain steps. Decisions are ``window`` steps
        apart. The first ``lag`` steps after a change are not counted, because an asynchronous engine had already
        scheduled them.
        """
        self.plain = PlainSeconds()
        self._agreement = AgreementRate()
        self._cost = DraftedCost()
        self._longest = longest
        self._share = loss_share
        self._account = LossAccount(loss_share)
        self._least = least_gain
        self._window = window
        self._lag = lag
        self._width = 0
        self._left = window
        self._news = False  #: whether agreement was learned since the switch last looked
        self._own = 0.0  #: seconds lost in the current window
        self._gains: dict[int, MeasuredGain] = {}
        self._run = MeasuredGain()  #: statistics since drafts were switched on, for any number of requests
        self._since = 0.0  #: seconds of steps with drafts since plain steps were last measured
        self._clock = self._tried = 0.0  #: seconds of all steps, and when drafts were last on
        #: seconds of steps with drafts relative to plain steps, if known relative to the cost timed at start-up:
        #: recently, and when plain steps were last measured
        self._pace = self._first_pace = 0.0
        self._refreshing = False
        self._was, self._same = 0, 0
        self._long = 0  #: last steps that took as long as a pause
        self._report = SwitchReport()

    def learn_cost(self, costs: Iterable[tuple[int, int, float]]) -> None:
        """Learn the seconds of steps timed at start-up: (requests, draft length, seconds), length 0 for plain steps."""
        self._cost.learn(costs)
        if self._cost.known:
            self.plain.start_from(lambda rows: self._cost.timed(rows, 0))

    def learn_agreement(self, agreement: DraftAgreement) -> None:
        """Learn how many drafts of a batch agreed with the sampled tokens."""
        self._agreement.learn(agreement)
        self._news = True

    def width(self, rows: int, *, now: float) -> int:
        """Return the maximum draft length of the next step of ``rows`` running requests, 0 for no drafts.

        ``now`` is in seconds.
        """
        if self._report.ask(now) > _IDLE and self._width:
            self._since, self._left = float("inf"), 0
        if rows > 0 and (self._left <= 0 or (self._news and not self._width and self._knows_better(rows))):
            width = self._decide(rows)
            self._left, self._own = self._window, 0.0
            self._width = width
            self._report.decided(width, now)
        return self._width

    @property
    def _modelled(self) -> bool:
        return self._cost.known and self._agreement.known

    def _knows_better(self, rows: int) -> bool:
        # A new epoch's drafts may agree at once: do not wait for the end of a window without drafts.
        self._news = False
        if self._refreshing or not self._modelled or self._best(rows)[1] < self._least:
            return False
        self._renew(rows)
        return True

    def _decide(self, rows: int) -> int:
        plain = self.plain.seconds(rows)
        if plain <= 0:
            return 0
        if self._width:
            # Measuring plain steps forgoes the saving of one window: the more drafts save, the rarer the measurements.
            saved = 1 - self._run.took / self._run.plain if self._run.plain else 0.0
            often = (self._window + self._lag) * plain * saved / self._share
            changed = self._pace < self._first_pace / _SPED_UP
            if self._modelled and not changed:
                often = _SELDOM
            elif changed:
                often /= 2
            elif saved > _PLENTY:
                often = max(often, _AFTER)
            self._refreshing = self._since >= often
            if self._refreshing or not self._account.open:
                return 0
        elif not self._refreshing:
            self._run = MeasuredGain()
        width = self._by_model(rows, plain) if self._modelled else self._by_trial(rows, plain)
        self._refreshing = False if width else self._refreshing
        return width

    def _best(self, rows: int) -> tuple[int, float]:
        # The draft length with the highest gain, and this gain: a lower bound while drafts are off.
        best, errors = (0, 0.0), 0.0 if self._width else 1.0
        for width in self._cost.widths(rows):
            gain = self._agreement.tokens(width, errors=errors) / self._cost.multiple(rows, width)
            best = max(best, (width, gain), key=lambda choice: choice[1])
        return best

    def _by_model(self, rows: int, plain: float) -> int:
        width, gain = self._best(rows)
        if gain >= self._least:
            return width if self._account.open else 0
        # The cost may have fallen since drafts were last on; without agreement no cost is low enough.
        if self._width or not width or self._clock - self._tried < _SELDOM:
            return 0
        tokens = self._agreement.tokens(width)
        worst = (self._window + 2 * self._lag) * plain * max(_LEAST, self._cost.multiple(rows, width) - tokens)
        if tokens < self._least or self._account.left < min(worst, self._account.most):
            return 0
        self._report.trials += 1
        return width

    def _by_trial(self, rows: int, plain: float) -> int:
        if self._width:
            return self._longest if self._run.lower() >= self._least and self._own <= _OWN_LOSS * plain else 0
        gain = self._near(rows)
        if gain is not None and gain.lower() >= self._least:
            return self._longest if self._account.open else 0
        # A trial needs a balance that covers its worst case: one window, plus the lag before and after it.
        lost = _UNTRIED if gain is None else max(_LEAST, gain.took / gain.plain - 1)
        worst = plain * (min(_OWN_LOSS, self._window * lost) + 2 * self._lag * lost)
        if self._account.left < min(worst, self._account.most):
            return 0
        self._report.trials += 1
        self._run = MeasuredGain()
        for kind in {(rows - 1).bit_length()} & self._gains.keys():
            self._gains[kind].forget(0.25)
        return self._longest

    def _near(self, rows: int) -> MeasuredGain | None:
        own = (rows - 1).bit_length()
        known = [kind for kind, gain in self._gains.items() if gain.weight >= _ENOUGH or kind == own]
        return self._gains[min(known, key=lambda kind: abs(kind - own))] if known else None

    def observe(self, *, rows: int, emitted: int, seconds: float, width: int, prompt_tokens: int = 0) -> None:
        """Learn from a step with drafts of up to ``width`` tokens, 0 for none.

        ``seconds`` is the time since the last step ended or work arrived.
        """
        self._clock += seconds
        if width:
            self._tried = self._clock
        self._same = self._same + 1 if width == self._was else 1
        self._was = width
        if rows > 0 and self._is_pause(rows, seconds, width, prompt_tokens):
            return
        self._report.seconds[width > 0] += seconds
        self._account.step(seconds, plain=self.plain.most)
        if rows <= 0:
            return
        settled = self._same > self._lag
        if width or not settled:
            self._weigh(rows, emitted, seconds, prompt_tokens, width=width if settled else 0)
            measured = True
        else:
            if self._same == self._lag + 1:
                self.plain.begin()
            measured = self.plain.observe(rows, seconds, prompt_tokens)
        if settled and width == self._width and measured:
            self._left -= 1
            if self._left <= 0 and not self._width:
                self._renew(rows)

    def _is_pause(self, rows: int, seconds: float, width: int, prompt_tokens: int) -> bool:
        # More than one long step in a row: the engine has become slow.
        usual = self._usual(rows) if width else self.plain.seconds(rows)
        known = usual > 0 and self.plain.is_informative(rows, prompt_tokens)
        self._long = self._long + 1 if known and seconds > max(_PAUSED[0] * usual, _PAUSED[1]) else 0
        if self._long == 1:
            self._report.paused(seconds - usual)
            logger.warning(
                "A step of %d requests with drafts of up to %d tokens took %.2f s instead of %.3f s; turntree does not "
                "count this pause for or against drafts. If it repeats, look for compilation or other work on this "
                "machine.",
                rows,
                width,
                seconds,
                usual,
            )
        return self._long == 1

    def _usual(self, rows: int) -> float:
        return self._run.took / self._run.weight if self._run.weight >= _ENOUGH else self.plain.seconds(rows)

    def _weigh(self, rows: int, emitted: int, seconds: float, prompt_tokens: int, *, width: int) -> None:
        # ``width`` is 0 just after a change: such a step is charged, and nothing is learned from it.
        self._since += seconds
        plain = self.plain.seconds(rows)
        if plain <= 0 or not self.plain.is_informative(rows, prompt_tokens):
            return
        took = min(seconds - self.plain.by_prompt_token * prompt_tokens, _HICCUP * self._usual(rows))
        without = emitted * plain / rows
        self._account.pay(took - without)
        if not width:
            return
        pace = multiple = took / plain
        if self._cost.known and width in self._cost.widths(rows):
            expected = self._cost.multiple(rows, width)
            self._cost.see(rows, width, multiple)
            pace /= self._cost.timed_multiple(rows, width)
            self._report.compare(self._agreement.tokens(width), emitted / rows, expected * plain, took)
        kind = (rows - 1).bit_length()
        for gain in (self._run, self._gains.setdefault(kind, MeasuredGain())):
            gain.add(without, took)
        self._pace += _PACE * (pace - self._pace) if self._pace else pace
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
            self._cost.plain_steps_took(ratio)
            if gain is not None:
                gain.plain *= ratio
        self._since = self._pace = self._first_pace = 0.0

    def figures(self) -> dict[str, float]:
        """Return statistics in seconds, windows, trials, and milliseconds of plain steps by batch size.

        Expected and achieved tokens (per request) and seconds are sums over the ``compared_steps`` with drafts,
        ``seconds_until_on`` is a sum over epochs: the seconds before drafts were first on.
        """
        return {
            **self._report.figures(),
            "seconds_lost": self._account.lost,
            "seconds_account": self._account.left,
            **{f"plain_ms_{most}": 1e3 * seconds for most, seconds in self.plain.knots.items()},
        }
