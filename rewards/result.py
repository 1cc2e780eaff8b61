"""The verdict on an answer and the score of a text.

Invariant: ``correct`` is ``False`` only if the answer was graded; if the
verifier could not decide it is ``None`` and ``status`` states why. Only the gold answer or the infrastructure can make
a sample ungraded: an answer that the verifier understands less than the gold answer is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """How scoring ended."""

    OK = "ok"
    """The answer was compared with the gold answer."""
    NO_ANSWER = "no_answer"
    """The text names no answer (an empty box included); this is wrong."""
    UNPARSEABLE = "unparseable"
    """The answer is not well-formed or cannot be computed (wrong), or the gold answer cannot be read (ungraded)."""
    TIMEOUT = "timeout"
    """The comparison exceeded its deadline twice: wrong, unless the gold answer alone or the machine is the cause."""
    MEMORY = "memory"
    """The comparison needed more memory than allowed twice: wrong, unless the gold answer alone does."""
    CRASHED = "crashed"
    """The comparison failed, or its worker died: wrong if the answer caused that every time, else ungraded."""
    REJECTED_LIMITS = "rejected_limits"
    """The answer exceeds the size limits (wrong), or the gold answer does (ungraded)."""
    HACK_SUSPECT = "hack_suspect"
    """The text asks for credit without committing to one value: wrong; ``flags`` name the reasons."""
    UNGRADED = "ungraded"
    """The gold answer can be read, but its value cannot be computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The comparison of one answer with one gold answer."""

    correct: bool | None
    """Right, wrong, or ungraded."""
    status: Status = Status.OK
    """How the comparison ended."""
    method: str = ""
    """The deciding method: ``string``, ``number``, ``typed``, ``numeric``, ``sympy`` or ``""`` if none decided."""
    flags: tuple[str, ...] = ()
    """Suspicions of hacking, by the names in ``turntree.rewards.reading.flags``."""
    seconds: float = 0.0
    """Wall time of the comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of one text, and how it was determined."""

    score: float
    """1.0 where the answer is right, else 0.0; an ungraded answer scores 0.0, so look at ``correct``."""
    correct: bool | None
    """Right, wrong, or ungraded; ungraded samples should be left out of an average."""
    status: Status
    """How scoring ended."""
    answer: str | None = None
    """The answer found in the text."""
    guessed: bool = False
    """Whether the text gives no answer by name, and this is the last value of its words."""
    method: str = ""
    """The deciding method, as in ``Verdict``."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Values in [0, 1] for logs: ``answered`` (an answer was found) and ``decided``."""
    flags: tuple[str, ...] = ()
    """Suspicions of hacking."""
    seconds: float = 0.0
    """Wall time spent on this text; in a batch, only its comparison's."""
