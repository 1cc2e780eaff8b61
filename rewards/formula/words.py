"""Words around values that negate, hedge or oppose the values, or that are answers themselves."""

from __future__ import annotations

import re

from turntree.rewards.formula.syntax.problems import Suspect
from turntree.rewards.formula.units import read_unit
from turntree.rewards.reading import flags
from turntree.rewards.reading.scales import ASKING, changes_named

#: comparing words that only count things: ``5 more pages`` is a number of pages, ``5 more than`` is not
_COMPARED = re.compile(r"^(?:more|fewer|extra) (?=[a-z]{3})(?!than\b|or\b|and\b)")
#: parts of a label that describe the counted thing: ``days with no rain``, ``area under the curve``
_DESCRIBING = re.compile(
    r"(?<=[a-z] )(?<!answer )(?<!value )(?:(?:with no|without) (?!(?:a|an|the|any)\b)|"
    r"(?:under|above|below|between|around|over) (?:the|a|two) (?!answer|result|value|solution))[a-z]+|"
    r"(?<!at )\b(?:least|smaller|larger|greater|all)(?= (?!than|the|of|or|and|but|answers?|values?)[a-z])"
)
#: words of a label that reject the value as the answer
_REJECTING = frozenset(
    str.split("rejected discarded excluded eliminated ruled dismissed invalid option former old attempt mistake")
)
_NAME = re.compile(r"(?:^|\s)([A-Z][a-z]+)\.?$")
_TITLED = re.compile(r"\b(?:Mrs?|Ms|Dr)\.? [A-Z]")
_MONTHS = frozenset(str.split("january february march april may june july august september october november december"))
_ANSWERS = re.compile(r"\b(?:even|odd|yes|true|false)$", re.IGNORECASE)
#: opposite words; each row is an axis, and `` / `` separates its poles
_AXES = tuple(
    {word: pole for pole, words in enumerate(row.split(" / ")) for word in words.split()}
    for row in """am morning / pm afternoon evening night
noon / midnight
north northward / south southward / east eastward / west westward / northeast / northwest / southeast / southwest
left leftward leftwards / right rightward rightwards
up upward upwards upstairs uphill / down downward downwards downstairs downhill
high higher / deep deeper low lower
early earlier before ago prior / late later after afterwards hence
profit gain gained surplus won win credit earned ahead / loss lost lose deficit debt debit owed behind
increase increased rise rose growth grew more / decrease decreased fall fell drop dropped decline less fewer
clockwise cw / counterclockwise anticlockwise ccw counter-clockwise anti-clockwise
bc bce / ad ce
inside within / outside
fast faster / slow slower
old older / young younger
tall taller long longer / short shorter
heavy heavier / light lighter
forward forwards / backward backwards back
upstream / downstream
deposit deposited received / withdrawal withdrawn paid spent
hot hotter warm warmer / cold colder cool cooler
odd / even
positive / negative
boys boy men man male males sons / girls girl women woman female females daughters
heads head / tails tail
celsius \u00b0c / fahrenheit \u00b0f / kelvin
red / blue / green / yellow / black / white / orange / purple / pink / brown
monday / tuesday / wednesday / thursday / friday / saturday / sunday
maximum / minimum
simple / compound
in entering / out leaving""".splitlines()
)


def opposed(unit: str, other: str) -> bool:
    """Return whether the words around two values oppose each other: ``km east`` and ``km west``.

    Example:
        >>> opposed("km east", "km west"), opposed("km east", "km")
        (True, False)
    """
    one, two = (set(words.lower().replace(".", "").split()) for words in (unit, other))
    for axis in _AXES:
        poles = [{axis[word] for word in words if word in axis} for words in (one, two)]
        if all(poles) and not poles[0] & poles[1]:
            return True
    return False


def check_words(text: str) -> None:
    """Refuse words that negate or hedge a value.

    Raises:
        Suspect: The text has such a word.
    """
    for word in re.findall(r"[A-Za-z']+", _COMPARED.sub("", text.lower())):
        if word in flags.NEGATIVE_WORDS:
            raise Suspect(flags.NEGATION)
        if word in flags.HEDGING_WORDS:
            raise Suspect(flags.HEDGE)


def check_label(words: tuple[str, ...]) -> None:
    """Refuse labels that change a value: ``not = 7``, ``at least: 7``, ``half = 7``.

    Raises:
        Suspect: The label changes the value.
    """
    label = " ".join(words).replace("left over", "left")
    if words[0] in ASKING or changes_named(label):
        raise Suspect(flags.RESTATED)
    if not _REJECTING.isdisjoint(words) or words[-1] in ("out", "off"):
        raise Suspect(flags.NEGATION)
    check_words(_DESCRIBING.sub(" ", label))


def is_second_answer(unit: str, *, beside: str, question: str = "") -> bool:
    """Return whether the last word after a number is a second answer that the other value lacks.

    A name is an answer if it has a title (Mr.), or if the question writes it only with a capital letter. Counted
    things, units and months are not answers, even with a capital letter.

    Example:
        >>> question = "How many eggs does James have more than Mary?"
        >>> [is_second_answer(word, beside="", question=question) for word in ("James", "Eggs", "Student", "even")]
        [True, False, False, True]
    """
    if _ANSWERS.search(unit):
        return not _ANSWERS.search(beside)
    if _TITLED.search(unit):
        return not _TITLED.search(beside)
    named = _NAME.search(unit)
    if named is None or named[1].lower() in {*_MONTHS, *beside.lower().split()}:
        return False
    known = read_unit(named[1])
    within = re.search(rf"[a-z0-9,;]['\")]?\s+{named[1]}\b", question)
    counted = known is not None and known.known
    return within is not None and not counted and re.search(rf"\b{named[1].lower()}", question) is None
