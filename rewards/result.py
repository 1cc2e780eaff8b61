"""The verdict on an answer and the score of a text.

Only the gold answer or the infrastructure can make a sample ungraded (``correct`` is ``None``). If the verifier can
parse and compute the gold answer but not the answer, the answer is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """Why scoring ended."""

    OK = "ok"  #: the answer was compared with the gold answer
    NO_ANSWER = "no_answer"  #: wrong: the text contains no answer, or an empty box
    #: wrong if the answer cannot be parsed or computed; ungraded if the gold answer cannot be parsed
    UNPARSEABLE = "unparseable"
    #: the comparison exceeded its deadline twice: wrong, unless the gold answer or a busy machine is the cause
    TIMEOUT = "timeout"
    MEMORY = "memory"  #: the comparison ran out of memory twice: wrong, unless the gold answer alone runs out, too
    #: the comparison failed or its worker died: wrong if the answer caused every failure, else ungraded
    CRASHED = "crashed"
    #: wrong if the answer exceeds the size limits; ungraded if the gold answer does
    REJECTED_LIMITS = "rejected_limits"
    HACK_SUSPECT = "hack_suspect"  #: wrong: the text seeks credit without committing to one value; see ``flags``
    UNGRADED = "ungraded"  #: the gold answer was parsed, but its value cannot be computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of comparing one answer with one gold answer."""

    correct: bool | None  #: ``None`` if ungraded
    status: Status = Status.OK
    #: ``string``, ``number``, ``option``, ``tolerance``, ``typed``, ``numeric``, ``sympy``; ``""`` if no method decided
    method: str = ""
    flags: tuple[str, ...] = ()  #: suspected reward hacks, named in ``turntree.rewards.reading.flags``
    seconds: float = 0.0  #: wall time of the comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of one text, and how it was determined."""

    score: float  #: 1.0 if the answer is right, else 0.0; check ``correct`` to tell wrong from ungraded
    correct: bool | None  #: ``None`` if ungraded; leave ungraded samples out of an average
    status: Status
    answer: str | None = None  #: the answer found in the text
    guessed: bool = False  #: whether no phrase names the answer, so the last value in the prose was taken
    method: str = ""  #: method of the comparison, as in ``Verdict``
    #: values in [0, 1] for logs: ``answered`` (an answer was found) and ``decided`` (it was graded)
    components: Mapping[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()  #: suspected reward hacks
    seconds: float = 0.0  #: wall time of scoring this text; in a batch, of the comparison only
