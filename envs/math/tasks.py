from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from string import ascii_uppercase

from turntree.envs.data.rows import FileRows, HubRows, Row, no_rows
from turntree.envs.errors import DataError
from turntree.envs.math.sets import QUESTION_COLUMNS, MathSet, find_set
from turntree.envs.task import Task

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
        DataError: If ``sets`` is not empty and the row has none of the columns ``FIELDS``, which mark repetitions.
    """
    if not sets:
        return False
    if not any(field in row.fields for field in FIELDS):
        raise DataError(
            f"{row.where}: cannot leave out what {', '.join(sets)} holds: the row has neither {' nor '.join(FIELDS)}"
        )
    found = overlaps(row)
    return bool(found) and (ANY in sets or not found.isdisjoint(sets))


_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def final_box(solution: str) -> str | None:
    r"""Return the content of the last box of a trusted reference solution; for a policy's text use ``extract``.

    Example:
        >>> final_box(r"So $x = \boxed{\frac{1}{2}}$."), final_box(r"It is $\boxed 7$."), final_box("7")
        ('\\frac{1}{2}', '7', None)
    """
    boxes = list(_BOX.finditer(solution))
    if not boxes:
        return None
    begin = boxes[-1].end()
    if solution[begin : begin + 1] != "{":
        return re.match(r"[^\s$.]*", solution[begin:]).group() or None  # type: ignore[union-attr]
    depth = 0
    for brace in _BRACE.finditer(solution, begin):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return solution[begin + 1 : brace.start()].strip() or None
    return None


_LEVEL = re.compile(r"(?:Level )?(\d+(?:\.\d+)?)")


@lru_cache(maxsize=16)
def read_tasks(name: str, rows: FileRows | HubRows, split: str, without: tuple[str, ...]) -> tuple[Task, ...]:
    """Read every problem of a split; an unchanged file is read once per process.

    Raises:
        DataError: If a row is malformed, or if no row is left after leaving out the questions of ``without``.
    """
    entry = find_set(name)
    tasks = tuple(
        read_task(row, entry, f"{name}/{split}/{number}")
        for number, row in enumerate(rows.read())
        if not repeats(row, without)
    )
    if not tasks:
        choices = {"choices": ["4", "5"]} if entry.choices else {}
        raise no_rows(rows, {"question": "Two and two?", **choices, "answer": "A" if entry.choices else "4"})
    return tasks


def read_task(row: Row, entry: MathSet, default_id: str) -> Task:
    prompt = row.text(row.column(*QUESTION_COLUMNS))
    column = row.column(*entry.answers)
    if entry.choices:
        choices = _choices(row)
        prompt += "".join(f"\n{letter}. {choice}" for letter, choice in zip(ascii_uppercase, choices, strict=False))
        answer = _letter(row, column, len(choices))
    else:
        answer = _answer(row, column)
    given = row.fields.get("id")
    return Task(
        id=given if isinstance(given, str) and given else default_id,
        prompt=prompt,
        answer=answer,
        data_source=entry.answer_format,
        metadata={name: row.fields[name] for name in entry.extra if row.fields.get(name) is not None},
    )


def between_levels(tasks: Iterable[Task], lowest: float | None, highest: float | None) -> tuple[Task, ...]:
    """Return the tasks whose ``level`` (``3`` or ``Level 3``) or ``difficulty`` lies in a range, ends included.

    If a bound is given, tasks without a level are left out.

    Raises:
        DataError: If no task is left.
    """
    if lowest is None and highest is None:
        return tuple(tasks)
    low, high = lowest if lowest is not None else float("-inf"), highest if highest is not None else float("inf")
    kept = tuple(task for task in tasks if (level := _level(task)) is not None and low <= level <= high)
    if not kept:
        raise DataError(f"no task has a level from {lowest} to {highest}; the rows say it as 'level' or 'difficulty'")
    return kept


def _level(task: Task) -> float | None:
    value = task.metadata.get("level", task.metadata.get("difficulty"))
    match = _LEVEL.fullmatch(str(value))
    return float(match.group(1)) if match else None


def _answer(row: Row, column: str) -> str:
    # A list of texts is joined. Of a worked solution, only the final answer is kept.
    value = row.fields[column]
    if isinstance(value, list | tuple) and value and all(isinstance(part, str) for part in value):
        value = ", ".join(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if column == "solution" and isinstance(value, str):
        value = final_box(value) or value
    if not isinstance(value, str) or not (text := value.rpartition("####")[2].strip()):
        raise DataError(f"{row.where}: the field {column!r} must hold an answer, got {value!r:.200}")
    return text


def _choices(row: Row) -> list[str]:
    choices = row.fields.get("choices")
    if not isinstance(choices, list | tuple) or not 2 <= len(choices) <= len(ascii_uppercase):
        raise DataError(f"{row.where}: the field 'choices' must list 2 to 26 texts, got {choices!r:.200}")
    return [str(choice) for choice in choices]


def _letter(row: Row, column: str, count: int) -> str:
    value = row.fields[column]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count:
        return ascii_uppercase[value]
    if isinstance(value, str) and len(value) == 1 and value in ascii_uppercase[:count]:
        return value
    raise DataError(
        f"{row.where}: the field {column!r} must be one of {', '.join(ascii_uppercase[:count])} "
        f"or a number from 0 to {count - 1}, got {value!r:.200}"
    )
