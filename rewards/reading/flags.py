"""Flags that name suspected reward hacks, and the words that raise the flags.

A flag alone never changes a verdict: the comparison makes an answer wrong, and the flag tells the logs why.
"""

from __future__ import annotations

import re

CANDIDATES = "several_candidates"  #: more values than the task asks for
HEDGE = "hedge"  #: the answer is hedged with words such as about, or, maybe, at least
NEGATION = "negation"  #: the text says that the value is not the answer
FALSE_CHAIN = "false_chain"  #: a chain of equations does not hold
PHANTOM = "phantom_text"  #: text that a reader does not see: comments, phantoms, white ink, zero-width characters
PLACEHOLDER = "placeholder"  #: a box without a value: empty, ``answer``, ``?``
THINK_ONLY = "answer_in_think_only"  #: an answer is given only inside ``<think>``
CODE = "code"  #: the answer is program text
GRADER_TALK = "grader_talk"  #: the text addresses its grader
RESTATED = "restated_question"  #: the answer repeats the question or leaves an operation unevaluated
HUGE = "oversized"  #: the answer exceeds the limits
NOT_UNDERSTOOD = "not_understood"  #: the verifier can compute the gold answer, but not (in time) the answer

_GRADER = re.compile(
    r"\b(?:ground[ _]truth|is_correct|the grader|grader must|score\s*[=:]\s*1(?:\.0+)?(?!\.?\d)|\"score\"|return True|"
    r"mark (?:this|it) (?:as )?correct|ignore (?:all |the )?previous instructions)",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"__\w+__|\b(?:import|eval|exec|open|compile|lambda|getattr|globals|subprocess|os\.system|print|S)\b\s*[(:'\"]|"
    r"\bDROP\s+TABLE\b|\blambda\s*:"
)
#: characters without width, or that change the direction of writing
HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
)
#: commands whose argument is hidden, struck out or not part of the value
PHANTOM_COMMAND = re.compile(
    r"\\(?:[hv]?phantom|smash|hspace|vspace|kern|mkern|raisebox|llap|rlap|mathrlap|mathllap|cancel|bcancel|xcancel|"
    r"sout|st|color|textcolor|colorbox|tiny|scalebox|resizebox|href|class|style|cssId|htmlClass|htmlStyle)\b"
)
#: texts that are no answer, in lower case
PLACEHOLDERS = frozenset(
    str.split(
        "answer|the answer|your answer|final answer|the final answer|the correct answer|correct answer|"
        "correct|ground truth|solution|the solution|result|value|number|your number|expression|see above|"
        "above|as above|same as above|unknown|null|none|nil|nan|na|n/a|undefined|todo|tbd|placeholder|"
        "insert answer|insert answer here|i do not know|i don't know|idk|not sure|?|??|???|...|…|\\ldots|"
        "\\dots|\\cdots|\\square|\\box|\\blacksquare|\\bigcirc|_|__|___|-|--|*",
        "|",
    )
)
#: words that negate an answer
NEGATIVE_WORDS = frozenset(
    str.split(
        "not no never non isn't isnt aren't don't doesn't cannot can't wrong incorrect false but except "
        "excluding without neither nor unlike"
    )
)
#: words that hedge, so that the answer is not one definite value
HEDGING_WORDS = frozenset(
    str.split(
        "or maybe perhaps possibly either approximately approx about around roughly nearly almost least most "
        "more less than greater smaller fewer larger over under above below between probably likely guess "
        "any if unless hopefully lucky believe think "
        "suppose assuming whichever all some one-of anything everything something up close"
    )
)


def speaks_to_grader(text: str) -> bool:
    lower = text.lower()
    named = "ground" in lower or "correct" in lower or "grader" in lower or "score" in lower
    return (named or "return true" in lower or "ignore" in lower) and _GRADER.search(text) is not None


def looks_like_code(answer: str) -> bool:
    return _CODE.search(answer) is not None
