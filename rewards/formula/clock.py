"""Times of the day: ``8:34 p.m.``, ``16:30``, ``9 a.m.``, ``noon``."""

from __future__ import annotations

import re
from typing import NamedTuple

_WRAPPED = re.compile(r"\\(?:text(?:bf|it|rm)?|mathrm|mbox)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[,!;: ]|\\q?quad(?![a-zA-Z])|[{}$~]")
_CLOCK = re.compile(
    r"(?:at )?(?P<hour>[01]?\d|2[0-4])"
    r"(?:\s*[:\uff1ah]\s*(?P<minute>[0-5]\d)(?:\s*[:\uff1a]\s*(?P<second>[0-5]\d))?)?\s*"
    r"(?P<half>a\.?\s?m\.?|p\.?\s?m\.?|noon|midnight|in the (?:morning|afternoon|evening)|at night|o'? ?clock|hours|h)?"
    r"(?: on| sharp)?\.?",
    re.IGNORECASE,
)
_HOURS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_SPOKEN = re.compile(
    rf"(?:an? )?(?P<part>quarter|half) (?P<side>to|past) (?P<hour>{'|'.join(_HOURS)})"
    r"(?P<half> (?:a\.?\s?m\.?|p\.?\s?m\.?|in the (?:morning|afternoon|evening)))?"
)
_NO_TIME = re.compile(r"(?<![\d:])\d{1,2}\s*:\s*[6-9]\d(?![\d:])")  #: 60 minutes or more
_SPANS = re.compile(r"hours?|h", re.IGNORECASE)


class Clock(NamedTuple):
    """A time of the day."""

    seconds: int  #: seconds since midnight; without a or p, of the time as written
    half: str  #: ``a`` (a.m.), ``p`` (p.m.), or empty if the text names neither
    written: tuple[int, int, int]  #: hour, minute and second as written


def read_clock(text: str) -> Clock | None:
    # A bare number is no time of the day.
    if len(text) > 80 or not any(
        part in text.lower() for part in ("m", ":", "\uff1a", "clock", "noon", "h", "quarter")
    ):
        return None
    words = " ".join(
        _SPACING.sub(" ", _WRAPPED.sub(r" \1 ", text).replace("\\!", "").replace("{:}", ":")).split()
    ).strip(" .,")
    words = re.sub(r"\s*:\s*", ":", words)
    if words.lower() in ("noon", "midnight"):
        words = f"12 {words}"
    if (spoken := _SPOKEN.fullmatch(words.lower())) is not None:
        hour = (_HOURS.index(spoken["hour"]) - (spoken["side"] == "to")) % 12 + 1
        words = (
            f"{hour}:{30 if spoken['part'] == 'half' else 45 if spoken['side'] == 'to' else 15}{spoken['half'] or ''}"
        )
    match = _CLOCK.fullmatch(words)
    if match is None:
        return None
    half = (match["half"] or "").lower()
    if match["minute"] is None and (not half or _SPANS.fullmatch(half)):
        return None
    named = "a" if (half.startswith("a") and "night" not in half) or half == "midnight" or "morning" in half else ""
    if not named and (
        half.startswith("p") or half == "noon" or "afternoon" in half or "evening" in half or "night" in half
    ):
        named = "p"
    hour, minute, second = int(match["hour"]), int(match["minute"] or 0), int(match["second"] or 0)
    if named and hour > 12:
        named = "p" if named == "p" else "?"
    whole = hour % 12 + (12 if named == "p" else 0) if named and hour <= 12 else hour
    return Clock(whole * 3600 + minute * 60 + second, named, (hour, minute, second))


def same_time(gold: str, text: str) -> bool | None:
    """Return whether two texts give the same time of the day; ``None`` if a text gives no time.

    A time a.m. and a time p.m. differ. One of the texts may leave out a.m. or p.m.
    """
    right = read_clock(gold)
    ours = read_clock(text) if right is not None else None
    if right is not None and ours is None and _NO_TIME.search(text):
        return False
    if right is None or ours is None or "?" in right.half + ours.half:
        return None if right is None or ours is None else False
    if right.half and ours.half:
        return right.seconds == ours.seconds
    if right.written == ours.written:
        return True
    whole = ours if right.half else right
    return right.seconds == ours.seconds and bool(right.half or ours.half) and not 1 <= whole.written[0] <= 12
