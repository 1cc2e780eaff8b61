"""Combinations of parameters, of which every third runs in ``make test`` and all in ``make test-all``."""

import itertools
from typing import Any

import pytest


def every_third(*axes: Any) -> list[Any]:
    """Rows for ``parametrize``: each value of each axis comes up in a row without the mark ``release``."""
    numbered = itertools.product(*map(enumerate, axes))
    return [
        pytest.param(*(value for _, value in row), marks=[pytest.mark.release] if sum(n for n, _ in row) % 3 else [])
        for row in numbered
    ]
