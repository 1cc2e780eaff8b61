"""Find rows of a training set that repeat questions of an evaluation set.

The rows carry this information: ``overlaps_eval`` lists the evaluation sets whose question a row repeats, and
``in_math500`` marks those of MATH-500. Nothing is compared here, so a set without such fields cannot be cleaned.
"""

from __future__ import annotations

from collections.abc import Sequence

from turntree.envs.data.rows import Row
from turntree.envs.errors import DataError

FIELDS = ("overlaps_eval", "in_math500")
ANY = "any"  #: stands for every evaluation set


def overlaps(row: Row) -> frozenset[str]:
    names = row.fields.get("overlaps_eval")
    names = [] if names is None else names
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{row.where}: the field 'overlaps_eval' must be a list of names, got {names!r}")
    marked = row.fields.get("in_math500", False)
    if not isinstance(marked, bool):
        raise DataError(f"{row.where}: the field 'in_math500' must be true or false, got {marked!r}")
    return frozenset(names) | ({"math500"} if marked else set())


def repeats(row: Row, sets: Sequence[str]) -> bool:
    """Return whether a row repeats a question of one of the evaluation sets (names such as ``math500``, or ``any``).

    Raises:
        DataError: If sets are named and the row has none of ``FIELDS``.
    """
    if not sets:
        return False
    if not any(field in row.fields for field in FIELDS):
        raise DataError(
            f"{row.where}: cannot leave out what {', '.join(sets)} holds: the row has neither {' nor '.join(FIELDS)}"
        )
    found = overlaps(row)
    return bool(found) and (ANY in sets or not found.isdisjoint(sets))
