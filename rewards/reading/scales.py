"""Words that change a number: multipliers, operations, number words. Such a word is never a unit or a noun."""

from __future__ import annotations

import re
from fractions import Fraction

_TABLE = """
10 ten tens; 100 hundred hundreds; 1000 thousand thousands; 1000000 million millions mil mn mio;
1000000000 billion billions bn milliard mrd; 1000000000000 trillion trillions tn; 1000000000000000 quadrillion;
100000 lakh lakhs; 10000000 crore crores; 12 dozen dozens; 20 score; 144 gross; 2 couple;
1/2 half halves; 1/3 third thirds; 1/4 quarter quarters fourths; 1/5 fifth fifths; 1/6 sixth sixths;
1/7 seventh sevenths; 1/8 eighth eighths; 1/9 ninth ninths; 1/10 tenth tenths; 1/100 hundredth hundredths;
1/1000 thousandth thousandths; 1/1000000 millionth millionths; 1/1000 permille; 1/1000000 ppm
"""
SCALES = {
    word: Fraction(number)
    for number, *words in (entry.split() for entry in _TABLE.replace("\n", " ").split(";"))
    for word in words
}
#: words directly before a number that name an operation; tried from last to first, "cube root" before "root"
OPERATIONS = (
    (re.compile(r"\b(?:negative|minus|opposite of|negation of|negative of|additive inverse of)$"), "negated"),
    (re.compile(r"\b(?:square of|squared)$"), "square"),
    (re.compile(r"\b(?:cube of|cubed)$"), "cube"),
    (re.compile(r"\b(?:(?:positive |principal )?square )?root(?: of)?$"), "root"),
    (re.compile(r"\bcube root(?: of)?$"), "cube root"),
    (re.compile(r"\b(?:reciprocal of|inverse of|one over|multiplicative inverse of)$"), "reciprocal"),
    (re.compile(r"\b(?:twice|double|two times|doubled)$"), "2"),
    (re.compile(r"\b(?:thrice|triple|three times|tripled)$"), "3"),
    (re.compile(r"\b(?:quadruple|four times)$"), "4"),
    (re.compile(r"\b(?:one|a)?[ -]?half(?: of)?$"), "1/2"),
    (re.compile(r"\b(?:one|a)[ -]third(?: of)?$"), "1/3"),
    (re.compile(r"\b(?:(?:one|a)[ -])?quarter(?: of)?$"), "1/4"),
)
#: words before or after a number that may change the number
CHANGING = (
    frozenset(
        str.split(
            "plus minus times over divided multiplied mod modulo base point recurring repeating inverse "
            "reciprocal opposite prime root roots square cube squared cubed power log ln logarithm sine cosine "
            "tangent sin cos tan factorial choose complement predecessor successor negative minus half double "
            "twice thrice triple quadruple exponential exp floor ceiling sqrt derivative integral next previous "
            "anti fold doubled tripled halved negated negation sum product difference quotient digits integers digit "
            "divisor divisors factors multiple"
        )
    )
    | SCALES.keys()
)
#: words with which a question begins
ASKING = frozenset(str.split("find compute evaluate simplify calculate determine express solve what prove show"))
_ENDS = frozenset(str.split("of to from by in than after before until on past at with without within between for per"))
#: verbs between the name of a number and its value: ``the sum is 5``.
VERBS = frozenset(("is", "are", "was", "equals"))
_MEASURES = re.compile(
    r"\b(?:equals?|equal|comes|amounts|evaluates|simplifies|reduces|works out|adds up) to$|"
    r"\b(?:total|area|volume|length|width|height|depth|distance|radius|diameter|circumference|perimeter|speed|rate|angle|"
    r"measure|mass|weight|age|value|price|cost|profit|temperature|probability|maximum|minimum|average|mean|median|amount|"
    r"answer|result|solution|range|slope|time|duration|charge|change|sum total|balance|salary|number|score|count) of$|"
    r"\b(?:cost|price|pay|paid|sold|bought|go|goes|went|year|day|week|month|hour|in|for) (?:for|at)$|\btotal in$"
)
#: names of the results of operations
_RESULTS = re.compile(
    r"\b(?:sum|product|difference|quotient|digits?|integers?|divisors?|factors?|multiples?|primes?|roots|base|points?|"
    r"score|power|to choose|(?:of|many) times|(?:tens|hundreds|thousands|tenths|hundredths|thousandths) (?=digit)|"
    r"(?:larger|smaller|greater|largest|smallest|other|real|only) root|"
    r"(?:in|of|the) (?:a |the |each )?(?:\w+ )?(?:square|cube)(?=$| (?:is|are|was|equals)$)|"
    r"(?<!one )(?<!a )(?:next|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|half|quarter) "
    r"(?=term|number|angle|side|integer|digit|element|prime|multiple|root))\b"
)
_ITSELF = re.compile(r"\b(?:(?:it|this|that)(?= (?:is|are|was|equals|and|plus|with)\b|$)|answer\b|result\b)")
_UNITS = {
    word: number
    for number, word in enumerate(
        str.split(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen"
        )
    )
} | {word: 10 * n for n, word in enumerate(str.split("twenty thirty forty fifty sixty seventy eighty ninety"), 2)}
_POWERS = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_MAX_WORDS = 12


def changes_unknown(words: str) -> bool:
    parts = words.split() or [""]
    if parts[-1] in VERBS or _MEASURES.search(words):
        return changes_named(words)
    return parts[-1] in _ENDS or any(part in CHANGING for part in parts)


def changes_named(words: str) -> bool:
    # "half of it is" changes the value. "the sum of 2 and 3 is" only names it, unless the operand is the answer itself.
    if any(part in CHANGING for part in _RESULTS.sub(" ", words).split()):
        return True
    named = _RESULTS.search(words)
    return named is not None and _ITSELF.search(words, named.end()) is not None


def numeral(text: str) -> Fraction | None:
    """Return the number that words name: ``twenty-five``, ``one half``, ``minus three``, ``two million``.

    Example:
        >>> numeral("one hundred and twenty-five"), numeral("two thirds"), numeral("two of them")
        (Fraction(125, 1), Fraction(2, 3), None)
    """
    words = text.lower().replace("-", " ").split()
    if not words or len(words) > _MAX_WORDS:
        return None
    if words[0] in ("minus", "negative"):
        value = numeral(" ".join(words[1:]))
        return None if value is None else -value
    if words[:2] in (["half", "a"], ["half", "an"]) and (whole := numeral(" ".join(["one", *words[2:]]))) is not None:
        return whole / 2
    if words == ["half"]:
        return Fraction(1, 2)
    if words[-3:] == ["and", "a", "half"]:
        value = numeral(" ".join(words[:-3]))
        return None if value is None else value + Fraction(1, 2)
    if len(words) > 1 and words[-1] in SCALES and words[-1] not in _POWERS:
        value = numeral(" ".join(words[:-1])) if words[:-1] != ["a"] else Fraction(1)
        return None if value is None else value * SCALES[words[-1]]
    total, group, last = 0, 0, 10**15
    for index, word in enumerate(words):
        if word in _UNITS:
            number = _UNITS[word]
            if (group % 100 and not (group % 10 == 0 and group % 100 >= 20 and 0 < number < 10)) or (
                group and not number
            ):
                return None
            group += number
        elif word in _POWERS and group:
            power = _POWERS[word]
            if power == 100:
                group *= 100
            elif power < last:
                total, group, last = total + group * power, 0, power
            else:
                return None
        elif word != "and" or index in (0, len(words) - 1):
            return None
    return Fraction(total + group)
