import itertools
from typing import Any

import pytest


def every_third(*axes: Any) -> list[Any]:
    """Return rows for ``parametrize``; two thirds are marked ``release``, so only ``make test-all`` runs them.

    Each value of each axis occurs in a row without the mark.
    """
    numbered = itertools.product(*map(enumerate, axes))
    return [
        pytest.param(*(value for _, value in row), marks=[pytest.mark.release] if sum(n for n, _ in row) % 3 else [])
        for row in numbered
    ]
