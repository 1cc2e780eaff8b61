"""The visible part of a text: without comments and without text that LaTeX hides."""

from __future__ import annotations

import re

from turntree.rewards.reading.markup import end_of_group, is_boxed, without_markup

_WHITE = (
    r"(?:\[[^\]]*\])?\s*\{\s*(?:white|transparent|none|background|#?[fF]{3,8}|1(?:\s*,\s*1){0,2}|"
    r"255\s*,\s*255\s*,\s*255)\s*\}"
)
#: A command whose argument is hidden or altered.
HIDING = re.compile(
    r"\\(?:(?:[hv]?phantom|[bx]?cancel|sout|xout|st|strike|[rl]lap|math[rl]lap|comment|hide|hidden|ignore|invisible|"
    r"@?gobble)\*?(?![a-zA-Z])|textcolor" + _WHITE + "|"
    r"texttransparent\s*\{\s*0(?:\.0*)?\s*\}|set[a-z]*box\s*\d*\s*=?\s*\\[hv]box|s(?:ave)?box\s*(?:\{[^{}]{0,40}\}|\d+|\\[a-zA-Z]+)|"
    r"(?:(?:re)?new|provide)command\*?\s*(?:\{[^{}]{0,40}\}|\\[a-zA-Z]+)(?:\[[^\]]{0,9}\])*|"
    r"[gex]?def\s*\\[a-zA-Z]+[#\d]*|"
    r"(?:style|class|cssId|html(?:Class|Style)|scalebox)(?![a-zA-Z])\s*\{[^{}]*\}|resizebox\s*\{[^{}]*\}\s*\{[^{}]*\}|"
    r"ifthenelse\s*\{(?:[^{}]|\{[^{}]*\})*\}|(?:node|path|draw|fill)\s*\[[^\]]*opacity\s*=\s*0(?:\.0*)?\s*(?:,[^\]]*)?\]|"
    r"(?P<ink>(?:math)?color" + _WHITE + "|"
    r"(?:transparent|opacity|pgfset(?:fill|stroke)?opacity)\s*\{\s*0(?:\.0*)?\s*\}|"
    r"fontsize\s*\{\s*0(?:\.0*)?\s*(?:pt)?\s*\}\s*\{[^{}]*\}\s*\\selectfont))\s*"
)
_COMMENT = re.compile(r"(?:^|(?<=[})\]$.]))[ \t]*%", re.MULTILINE)
_COUNTED = re.compile(r"\d\s*(?:\$|\\\)|\)|\\\])+$")
_ANSWER = re.compile(r"box|####|answer", re.IGNORECASE)


def without_comments(text: str) -> str:
    # An HTML comment that is never closed extends to the end.
    kept, position = [], 0
    while (start := text.find("<!--", position)) >= 0:
        kept.append(text[position:start])
        end = text.find("-->", start)
        if end < 0:
            return "".join(kept)
        position = end + 3
    return "".join(kept) + text[position:]


def without_hidden(text: str) -> str:
    r"""Return the text without phantoms, white ink, struck-out words, and comments that name an answer.

    Example:
        >>> without_hidden(r"It is 8 \phantom{\boxed{7}}"), without_hidden("50% of 4 is 2")
        ('It is 8 ', '50% of 4 is 2')
    """
    text = without_markup(text)
    if "%" in text:
        text = _without_comments_that_answer(text)
    kept, position = [], 0
    for match in HIDING.finditer(text):
        if match.start() < position or is_boxed(text, match.start()):
            continue
        kept.append(text[position : match.start()])
        position = end_of_group(text, match.end(), depth=1 if match["ink"] else 0)
    return "".join(kept) + text[position:]


def _without_comments_that_answer(text: str) -> str:
    # Only comments that name an answer are dropped: most percent signs in prose are percentages.
    kept, position, searched = [], 0, 0
    for sign in _COMMENT.finditer(text):
        if sign.start() < max(position, searched) or _COUNTED.search(text[max(0, sign.start() - 40) : sign.start()]):
            continue
        end = text.find("\n", sign.end())
        end = len(text) if end < 0 else end
        if _ANSWER.search(text, sign.end(), end):
            kept.append(text[position : sign.start()])
            position = end
        else:
            searched = end
    return "".join(kept) + text[position:]
