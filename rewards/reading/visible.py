"""Extraction of the visible part of a text: without comments and without text that LaTeX hides."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_LOOK_BACK = 400
_STRUCK = re.compile(r"~~(?=[^\s~])([^~]{1,2000}?)(?<=\S)~~(?!~)")
_ANSWERS = re.compile(r"box|####|answer|\d", re.IGNORECASE)
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]{0,15})(?=[\s/>])([^<>]{0,600})>")
_NEVER_SHOWN = frozenset(str.split("s del strike template script style noscript title head details"))
_NOT_DISPLAYED = re.compile(
    r"""\bhidden\b|display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse)|opacity\s*:\s*0(?:\.0*)?(?![.\d])|"""
    r"""font-size\s*:\s*0|(?<![\w-])(?:width|height)\s*[:=]\s*\W?0(?![.\d%])|line-through|text-indent\s*:\s*-|(?:^|[\s;"'-])color\s*[:=]\s*["']?\s*"""
    r"""(?:white|transparent|#f{3,8}\b|rgba?\(\s*255\s*,\s*255\s*,\s*255)""",
    re.IGNORECASE,
)
_CUT_OFF = re.compile(
    r"(?=.*\boverflow(?:-[xy])?\s*:\s*(?:hidden|clip)).*(?<![\w-])max-(?:width|height)\s*:\s*0(?![.\d%])",
    re.IGNORECASE | re.DOTALL,
)
_BRANCH = re.compile(r"\\(if[a-zA-Z]*|else|fi)(?![a-zA-Z])")
_LEFT_OUT = re.compile(
    r"\\begin\s*\{(comment|hidden|hide|invisible|filecontents\*?|lrbox|nodisplay|"
    r"\w+(?=\}\s*\[[^\]]*opacity\s*=\s*0(?:\.0*)?\s*[,\]]))\}"
)
_NOTE = re.compile(
    r"^[ \t]*\[[^\]\n]{0,80}\]:[^\n]*$|\[(?://|comment|_)\]:[^\n]*$|%%.*?%%|!\[[^\]\n]{0,400}\]|<\?.{0,400}?\?>|"
    r"(?<=\])\([^()\s]{0,200}\s+\"[^\"\n]{0,200}\"\)",
    re.MULTILINE | re.DOTALL,
)


def without_markup(text: str) -> str:
    r"""Return the text without the parts that its markup hides.

    Example:
        >>> without_markup(r"8 ~~\boxed{7}~~"), without_markup(r"8 \iffalse \boxed{7} \fi")
        ('8 ', '8 ')
    """
    if "~~" in text:
        text = _cut(
            text, ((match.start(), match.end()) for match in _STRUCK.finditer(text) if _ANSWERS.search(match[1]))
        )
    if "]" in text or "%%" in text or "<?" in text:
        text = _cut(text, ((match.start(), match.end()) for match in _NOTE.finditer(text) if _ANSWERS.search(match[0])))
    if "<" in text:
        text = _cut(text, _elements(text))
    if "\\if" in text:
        text = _cut(text, _branches(text))
    return _cut(text, _environments(text)) if "\\begin" in text else text


def is_boxed(text: str, index: int) -> bool:
    box = text.rfind("box", max(0, index - _LOOK_BACK), index)
    return box >= 0 and end_of_group(text[box:index] + "}", 0, depth=0) > index - box


def end_of_group(text: str, start: int, *, depth: int) -> int:
    # Returns the end of the text if the group never closes.
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth <= 0:
            return brace.end() if brace[0] == "}" else start
    return len(text)


def _cut(text: str, parts: Iterator[tuple[int, int]]) -> str:
    kept, position = [], 0
    for start, end in parts:
        if start >= position and not is_boxed(text, start):
            kept.append(text[position:start])
            position = end
    return "".join(kept) + text[position:]


def _elements(text: str) -> Iterator[tuple[int, int]]:
    # Find HTML elements that are not displayed, and tags with an answer in an attribute.
    start, name, depth = -1, "", 0
    first = len(text) - len(text.lstrip())
    for tag in _TAG.finditer(text):
        own = tag[2].lower()
        if start >= 0:
            depth += 0 if own != name or tag[3].endswith("/") else -1 if tag[1] else 1
            if depth == 0:
                yield start, tag.end()
                start = -1
        elif not tag[1] and _is_hidden(own, tag[3]) and not (own == "s" and tag.start() <= first):
            start, name, depth = tag.start(), own, 1  # a text that begins with <s> has the mark of a tokenizer
        elif "=" in tag[3] and _ANSWERS.search(tag[3]):
            yield tag.start(), tag.end()
    if start >= 0 and name != "s":
        yield start, len(text)


def _is_hidden(name: str, attributes: str) -> bool:
    if name == "details":
        return re.search(r"\bopen\b", attributes) is None
    return name in _NEVER_SHOWN or any(rule(attributes) for rule in (_NOT_DISPLAYED.search, _CUT_OFF.match))


def _branches(text: str) -> Iterator[tuple[int, int]]:
    # Find the branch that TeX skips: the first branch of \iffalse, the second of \iftrue.
    # Skip both branches of a condition that TeX would have to compute.
    opened: list[bool | None] = []
    hidden = 0  # number of open conditions whose current branch is skipped
    start, last = -1, text.rfind("\\fi")
    for mark in _BRANCH.finditer(text):
        if mark[1] == "fi":
            if opened:
                hidden -= not opened.pop()
        elif mark[1] == "else":
            if opened and opened[-1] is not None:
                hidden += 1 if opened[-1] else -1
                opened[-1] = not opened[-1]
        elif mark[1] in ("iff", "ifthenelse") or last < mark.end():  # an arrow, or a slip
            continue
        else:
            never = mark[1] == "iffalse" or text.startswith("0", mark.end())
            opened.append(True if mark[1] == "iftrue" else False if never else None)
            hidden += not opened[-1]
        shown = not hidden
        if not shown and start < 0:
            start = mark.start()
        elif shown and start >= 0:
            yield start, mark.end()
            start = -1
    if start >= 0:
        yield start, len(text)


def _environments(text: str) -> Iterator[tuple[int, int]]:
    position = 0
    while (begin := _LEFT_OUT.search(text, position)) is not None:
        end = text.find(f"\\end{{{begin[1]}}}", begin.end())
        position = len(text) if end < 0 else end + len(begin[1]) + 6
        yield begin.start(), position


_WHITE = (
    r"(?:\[[^\]]*\])?\s*\{\s*(?:white|transparent|none|background|#?[fF]{3,8}|1(?:\s*,\s*1){0,2}|"
    r"255\s*,\s*255\s*,\s*255)\s*\}"
)
#: a command whose argument is hidden or altered
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
    # An HTML comment that is never closed extends to the end of the text.
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
    # Drop only comments that name an answer: most percent signs in prose are percentages.
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
