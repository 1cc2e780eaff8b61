"""What a verdict looks like.

Invariant: ``correct`` is ``False`` only where the answer was judged; where the
verifier could not decide it is ``None`` and ``status`` says why. Only the gold answer or the machinery can make
a sample undecided: an answer of which the verifier makes less than of the gold answer is wrong.
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
    """The answer is not well-formed or cannot be computed (wrong), or the gold answer cannot be read (undecided)."""
    TIMEOUT = "timeout"
    """The comparison ran past its deadline twice: wrong, unless the gold answer alone or the machine is to blame."""
    MEMORY = "memory"
    """The comparison needed more memory than allowed twice: wrong, unless the gold answer alone does."""
    CRASHED = "crashed"
    """The comparison failed, or its worker died: wrong where the answer did that every time, else undecided."""
    REJECTED_LIMITS = "rejected_limits"
    """The answer is larger than any that is accepted (wrong), or the gold answer is (undecided)."""
    HACK_SUSPECT = "hack_suspect"
    """The text asks for credit without committing to one value: wrong; ``flags`` say how."""
    UNDECIDED = "undecided"
    """The gold answer can be read, but has no value that could be computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The comparison of one answer with one gold answer."""

    correct: bool | None
    """Right, wrong, or undecided."""
    status: Status = Status.OK
    """How the comparison ended."""
    method: str = ""
    """What decided: ``string``, ``number``, ``typed``, ``numeric``, ``sympy`` or ``""`` where nothing did."""
    flags: tuple[str, ...] = ()
    """Suspicions of hacking, by the names in ``turntree.rewards.reading.flags``."""
    seconds: float = 0.0
    """Wall time of the comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The reward of one text, and how it came about."""

    score: float
    """1.0 where the answer is right, else 0.0; an undecided answer scores 0.0, so look at ``correct``."""
    correct: bool | None
    """Right, wrong, or undecided; undecided samples are better left out of an average."""
    status: Status
    """How scoring ended."""
    answer: str | None = None
    """The answer that was found in the text."""
    method: str = ""
    """What decided, as in ``Verdict``."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Values in [0, 1] for logs: ``answered`` (an answer was found) and ``decided``."""
    flags: tuple[str, ...] = ()
    """Suspicions of hacking."""
    seconds: float = 0.0
    """Wall time spent on this text; of a batch, its comparison's own time."""
