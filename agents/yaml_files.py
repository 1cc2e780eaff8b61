"""YAML files of users, read within limits on size, depth and alias expansion.

Values follow OmegaConf's rules: ``1e-3`` is a number, duplicate keys are errors, ``${...}`` stays text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from turntree.agents.errors import UsageError
from turntree.envs.data.json_files import read_text

_MOST_BYTES = 1 << 20
_MOST_VALUES = 50_000  #: greatest number of values in a text; values that an alias repeats count each time
_MOST_DEPTH = 100
_MOST_DIGITS = 4300  #: Python's own limit when it parses an integer


def read_yaml(path: Path) -> Any:
    """Return the values in a YAML file.

    Raises:
        UsageError: If the file is not YAML within the limits; the message names the file and line.
        OSError: If the file cannot be read.
    """
    try:
        text = read_text(path, most=_MOST_BYTES)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a YAML file: {error}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> Any:
    """Return the values in a YAML text.

    Args:
        where: Name of the text in error messages.

    Raises:
        UsageError: If the text is not YAML within the limits; the message names ``where`` and the line.

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
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        # The file has a tag that does not match its value, such as ``!!int x``.
        raise UsageError(f"{where}: expected YAML: {error}") from error


def _check(text: str) -> None:
    # Count in the parser's events, so that an alias bomb (aliases of aliases) is refused before any value is built.
    # `sizes`: anchor -> number of values below it, with aliases expanded.
    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []
    count = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        wrong = ""
        if isinstance(event, yaml.AliasEvent):
            count += sizes.get(event.anchor, 1)
            wrong = "an alias inside its own anchor" if event.anchor in dict(opened) else ""
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            if event.anchor:
                sizes[event.anchor] = 1
            number = event.style in (None, "") and event.value[:1] in "+-.0123456789"
            wrong = "a number with too many digits" if number and len(event.value) > _MOST_DIGITS else ""
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, count))
            count += 1
            wrong = f"nested deeper than {_MOST_DEPTH}" if len(opened) > _MOST_DEPTH else ""
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor:
                sizes[anchor] = count - before
        if count > _MOST_VALUES:
            wrong = f"more than {_MOST_VALUES:,} values, including those of aliases"
        if wrong:
            raise yaml.MarkedYAMLError(problem=wrong, problem_mark=event.start_mark)
