"""Constants of integration, whose names are free: ``x^2 + C`` and ``x^2 + K``, ``C_1 e^x + C_2 e^{-x}``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import permutations

from turntree.rewards.formula.syntax.nodes import Node, Sym
from turntree.rewards.formula.syntax.walk import free_variables, replaced

_RIGHT = re.compile(r"C|[Cc]_\d")
_GIVEN = re.compile(r"[CcKkA]|[CcKkA]_\d")
_VARIABLES = frozenset(("x", "y", "t", "z", "s", "u", "v", "theta", "f", "F"))
_MOST = 3


def renamed(gold: Node, answer: Node) -> Iterator[Node]:
    """Yield the answer with the gold answer's names of constants, in every order."""
    wanted, given = _constants(gold, _RIGHT), _constants(answer, _GIVEN)
    if not wanted or len(wanted) != len(given) or len(wanted) > _MOST or (wanted == given and "c_1" in given):
        return
    for names in permutations(wanted):
        if names != tuple(given):
            yield replaced(answer, {old: Sym(new) for old, new in zip(given, names, strict=True)})


def _constants(node: Node, pattern: re.Pattern[str]) -> list[str]:
    # A function of known variables whose other names can all be constants.
    names = free_variables(node)
    others = sorted(names - _VARIABLES)
    return others if names & _VARIABLES and all(map(pattern.fullmatch, others)) else []
