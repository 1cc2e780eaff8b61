from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def final_box(solution: str) -> str | None:
    r"""Return the content of the last box of a reference solution; for a policy's text use ``extract``.

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
