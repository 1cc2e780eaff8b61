"""YAML of users, read within bounds: what is too large, too deep or multiplied by aliases is refused with its line.

Values are plain, as OmegaConf reads them (``1e-3`` is a number, no key stands twice); ``${...}`` stays text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from turntree.agents.errors import UsageError
from turntree.envs.data.json_files import read_text

_MOST_BYTES = 1 << 20
_MOST_VALUES = 50_000
"""Values of a text, those that an alias repeats counted again."""
_MOST_DEPTH = 100
_MOST_DIGITS = 4300
"""Characters of a number, as Python reads integers."""


def read_yaml(path: Path) -> Any:
    """The values that a file holds.

    Raises:
        UsageError: If it is no YAML within the bounds; the message names file and line.
        OSError: If it cannot be read.
    """
    try:
        text = read_text(path, most=_MOST_BYTES)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no YAML file: {error}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> Any:
    """The values of a text.

    Args:
        where: Where it stands, for the message.

    Raises:
        UsageError: If it is no YAML within the bounds; the message names ``where`` and the line.

    >>> parse_yaml("a: &a [1e-3, 2]\\nb: *a", "x")
    {'a': [0.001, 2], 'b': [0.001, 2]}
    """
    from omegaconf._utils import get_yaml_loader

    try:
        _check(text)
        return yaml.load(text, Loader=get_yaml_loader())
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or str(error)
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        raise UsageError(f"{where}{line}: expected YAML: {' '.join(problem.split())}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # a tag that does not fit its value
        raise UsageError(f"{where}: expected YAML: {error}") from error


def _check(text: str) -> None:
    """Refuse a text beyond the bounds, before anything is built.

    Raises:
        YAMLError: If it is, or is no YAML.
    """
    sizes: dict[str, int] = {}  # of what has an anchor, with its aliases written out
    opened: list[tuple[str | None, int]] = []
    count = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        wrong = ""
        if isinstance(event, yaml.AliasEvent):
            count += sizes.get(event.anchor, 1)
            wrong = "an alias in what it names" if event.anchor in dict(opened) else ""
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor:
                sizes[event.anchor] = 1
            number = event.style in (None, "") and event.value[:1] in "+-.0123456789"
            wrong = "a number of too many digits" if number and len(event.value) > _MOST_DIGITS else ""
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, count))
            count += 1
            wrong = f"nested deeper than {_MOST_DEPTH}" if len(opened) > _MOST_DEPTH else ""
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor:
                sizes[anchor] = count - before
        if count > _MOST_VALUES:
            wrong = f"more than {_MOST_VALUES:,} values, those of aliases among them"
        if wrong:
            raise yaml.MarkedYAMLError(problem=wrong, problem_mark=event.start_mark)
