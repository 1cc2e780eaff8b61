"""The text after the last ``####`` of a turn."""

from __future__ import annotations


def final_line(text: str) -> str | None:
    """The rest of the line after the last ``####``; ``None`` if there is none or nothing follows.

    Example:
        >>> final_line("Try 1+2.\\n#### (1+2)*8 \\nDone.")
        '(1+2)*8'
        >>> final_line("I give up.") is None
        True
    """
    _, mark, rest = text.rpartition("####")
    line = rest.partition("\n")[0].strip()
    return line if mark and line else None
