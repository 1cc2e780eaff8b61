from __future__ import annotations

import re

_DIGITS = dict(zip("零〇一二两兩三四五六七八九", (0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9), strict=True))
_SMALL = {"十": 10, "百": 100, "千": 1000}
_LARGE = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_RUN = re.compile(f"负?[{''.join((*_DIGITS, *_SMALL, *_LARGE))}]+")
_PARTED = re.compile(f"({_RUN.pattern})分之({_RUN.pattern})")


def written(text: str) -> tuple[str, str]:
    """Return the Chinese number at the beginning of a text as LaTeX, and the rest of the text.

    Example:
        >>> [written(text) for text in ("三十五", "五分之三", "一千二百零五米", "十个", "个")]
        [('35', ''), ('\\frac{3}{5}', ''), ('1205', '米'), ('10', '个'), ('', '个')]
    """
    if (parted := _PARTED.match(text)) is not None:
        below, above = number(parted[1]), number(parted[2])
        if below is not None and above is not None and below > 0:
            value = rf"{above}\%" if parted[1] == "百" else rf"\frac{{{above}}}{{{below}}}"
            return value, text[parted.end() :]
    if (run := _RUN.match(text)) is not None and (named := number(run[0])) is not None:
        return str(named), text[run.end() :]
    return "", text


def number(run: str) -> int | None:
    # None for characters that name no whole number, such as 二三 or 十百.
    if run.startswith("负"):
        value = number(run[1:])
        return None if value is None else -value
    total, group, digit = 0, 0, None
    last_small, last_large = 10**4, 10**12
    for character in run:
        if character in _DIGITS:
            if digit:
                return None
            digit = _DIGITS[character]
        elif character in _SMALL:
            size = _SMALL[character]
            if size >= last_small or digit == 0:
                return None
            group, digit, last_small = group + (digit or 1) * size, None, size
        else:
            size = _LARGE[character]
            if size >= last_large or not group + (digit or 0):
                return None
            total, group, digit = total + (group + (digit or 0)) * size, 0, None
            last_small, last_large = 10**4, size
    return total + group + (digit or 0)
