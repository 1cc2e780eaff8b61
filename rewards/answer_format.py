"""Answer formats: the comparison rules of each data set.

A gold answer is the right answer that the data set gives. A format only states the type of the gold answers and the
tolerance of the data set. No format relaxes a check against reward hacking.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum

from turntree.rewards.errors import UnknownAnswerFormat


class Kind(StrEnum):
    """The type of a data set's answers."""

    MATH = "math"  #: any LaTeX expression
    INTEGER = "integer"  #: one non-negative integer (AIME)
    OPTION = "option"  #: the letter of one choice


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """The rules by which an answer is compared with the gold answer."""

    name: str  #: name of the data set
    kind: Kind = Kind.MATH
    relative_tolerance: float = 0.0
    """Accepted relative error of a single number; 0 requires equality."""
    absolute_tolerance: float = 0.0
    """Accepted absolute error of a single number; 0 requires equality."""
    rounded: bool = False
    """Whether gold decimals are rounded: every answer that rounds to the gold answer is right."""
    options: int = 26  #: number of choices, for ``Kind.OPTION``

    def __post_init__(self) -> None:
        for name in ("relative_tolerance", "absolute_tolerance"):
            value = getattr(self, name)
            if not 0 <= value < 1e6:
                raise ValueError(f"{name} must be zero or a positive number, got {value!r}; leave it out for equality")
        if not 1 <= self.options <= 26:
            raise ValueError(f"options must lie in 1..26, got {self.options}")

    @property
    def needs_question(self) -> bool:
        """Whether grading needs the question, to refuse copies of it (``7 + 5`` instead of 12)."""
        return self.kind is Kind.MATH

    @property
    def is_tolerant(self) -> bool:
        """Whether a number may differ from the gold answer and still be right."""
        return self.kind is Kind.MATH and (self.relative_tolerance > 0 or self.absolute_tolerance > 0 or self.rounded)


EXACT = AnswerFormat(name="math")
_ANSWER_FORMATS = {
    answer_format.name: answer_format
    for answer_format in (
        EXACT,
        AnswerFormat(name="gsm8k"),
        AnswerFormat(name="dapo"),
        AnswerFormat(name="amc"),
        AnswerFormat(name="olympiadbench"),
        AnswerFormat(name="minerva", rounded=True),
        AnswerFormat(name="aime", kind=Kind.INTEGER),
        AnswerFormat(name="mmlu-stem", kind=Kind.OPTION, options=4),
    )
}
_ALIASES = {
    "math500": "math",
    "math-500": "math",
    "hendrycks_math": "math",
    "openai/gsm8k": "gsm8k",
    "math_dapo": "dapo",
    "dapo_17k": "dapo",
    "aime24": "aime",
    "aime25": "aime",
    "minerva_math": "minerva",
    "mmlu_stem": "mmlu-stem",
    "mmlu": "mmlu-stem",
}


def answer_format_for(data_source: str) -> AnswerFormat:
    """Return the answer format of a data set.

    Args:
        data_source: Name or known alias in any case, for example ``math500`` or ``openai/gsm8k``.

    Raises:
        UnknownAnswerFormat: No data set has this name; the message lists the known names.
    """
    key = data_source.strip().lower()
    try:
        return _ANSWER_FORMATS[_ALIASES.get(key, key)]
    except KeyError:
        known = sorted({*_ANSWER_FORMATS, *_ALIASES})
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]!r}? Known" if near else "known"
        raise UnknownAnswerFormat(
            f"no answer format for data set {data_source!r}; {hint} are {', '.join(known)}, or pass an AnswerFormat"
        ) from None


def answer_formats() -> tuple[AnswerFormat, ...]:
    """Return every answer format that ships with the package."""
    return tuple(_ANSWER_FORMATS.values())
