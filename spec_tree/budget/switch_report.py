"""What ``DraftSwitch`` did and expected, as figures for reports."""

from __future__ import annotations

_EPOCH = 1.0  #: idle seconds after which a new epoch of rollouts is assumed


class SwitchReport:
    def __init__(self) -> None:
        self.seconds = [0.0, 0.0]  #: of plain steps and of steps with drafts
        self.trials = 0
        self._windows = [0, 0]
        self._asked: float | None = None
        self._began = 0.0  #: start of the epoch
        self._waits = False  #: whether drafts have not been on in this epoch
        self._until_on = 0.0
        self._pauses, self._paused = 0, 0.0
        self._compared = 0
        self._sums = [0.0] * 4

    def ask(self, now: float) -> float:
        """Return the seconds since the last call."""
        idle = 0.0 if self._asked is None else now - self._asked
        if self._asked is None or idle > _EPOCH:
            self._began, self._waits = now, True
        self._asked = now
        return idle

    def decided(self, width: int, now: float) -> None:
        self._windows[width > 0] += 1
        if width and self._waits:
            self._until_on += now - self._began
            self._waits = False

    def paused(self, seconds: float) -> None:
        self._pauses += 1
        self._paused += seconds

    def compare(self, *figures: float) -> None:
        """Take expected and achieved tokens per request, expected and achieved seconds of one drafted step."""
        self._compared += 1
        self._sums = [total + figure for total, figure in zip(self._sums, figures, strict=True)]

    def figures(self) -> dict[str, float]:
        names = ("expected_tokens", "achieved_tokens", "expected_seconds", "achieved_seconds")
        return {
            "seconds_on": self.seconds[True],
            "seconds_off": self.seconds[False],
            "paused_seconds": self._paused,
            "pauses": self._pauses,
            "windows_on": self._windows[True],
            "windows_off": self._windows[False],
            "trials": self.trials,
            "seconds_until_on": self._until_on,
            "compared_steps": self._compared,
            **dict(zip(names, self._sums, strict=True)),
        }
