"""Comparison of an answer with the gold answer, from text to verdict; runs in a worker process.

The order is: test for equal strings, refuse suspected reward hacks, compare by type with values in high precision, and
ask sympy if nothing else could decide.
"""

from __future__ import annotations

import re
from itertools import chain

from turntree.rewards.answer_format import AnswerFormat, Kind
from turntree.rewards.formula.clock import same_time
from turntree.rewards.formula.options import compare_option, is_option, same_letters, without_option
from turntree.rewards.formula.plain import bared, commands_stripped, plain
from turntree.rewards.formula.question.form import contradicts, lacks_form
from turntree.rewards.formula.question.restated import is_restated
from turntree.rewards.formula.syntax.bases import read_based
from turntree.rewards.formula.syntax.nodes import (
    Based,
    Const,
    Group,
    Matrix,
    Node,
    Num,
    Quantity,
    Ratio,
    Rel,
    SetOp,
    Words,
)
from turntree.rewards.formula.syntax.nouns import can_be_noun
from turntree.rewards.formula.syntax.parse import parse
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Malformed, Suspect, Undefined
from turntree.rewards.formula.syntax.walk import children, free_variables, holds, walk
from turntree.rewards.formula.tolerance import within_tolerance
from turntree.rewards.formula.typed import Comparison, check_labels
from turntree.rewards.formula.values.evaluate import Evaluation
from turntree.rewards.formula.values.numeric import integer_points, real_points
from turntree.rewards.formula.values.symbolic import equal_by_sympy
from turntree.rewards.formula.words import check_words, is_second_answer
from turntree.rewards.limits import LimitExceeded
from turntree.rewards.reading import flags
from turntree.rewards.reading.extract import Answer
from turntree.rewards.reading.scales import VERBS, changes_unknown
from turntree.rewards.reading.visible import without_hidden
from turntree.rewards.result import Status, Verdict

#: several numbers separated by blanks, some with signs, not one value: ``0 -4``
_APART = re.compile(r"-?\d+(?:[.,]\d+)*(?: [-+]\d+(?:[.,]\d+)*)+")
_CANDIDATES = 3
_WORDS_BEFORE = 3
_CLAUSE = re.compile(r"[.;\n](?=\s)")
_LOWER_WORD = re.compile(r"(?<!\\)\b[a-z]+")
_ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b")
_LETTER_RUN = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")  #: letters that may be a word or a product
_LETTERS = re.compile(r"\s*(?:\\(?:text[a-z]*|mathrm)\s*\{)?\s*([A-Za-z]{2,})\s*\}?\s*\.?\s*")
#: text in which a command says that letters are words
_NAMED = re.compile(r"\\(?:text[a-z]*|math(?:rm|bb|cal|bf)|mbox|operatorname\*?|begin|end)\s*\{[^{}]*\}")
_NUMBER_OR_FORMULA = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?(?:\s?/\s?\d+)?\s?\\?%?")
_GOES_ON = re.compile(r"\s*[+^~\u00b1]")  #: text that changes the number before it: ``5+``
#: commands that mark a formula; such text is parsed as a whole or not at all
_IN_FORMULA = re.compile(r"\\(?!text|boxed|[$%(),;:! \[\]])[a-zA-Z]")


def compare(gold: str, answer: Answer, answer_format: AnswerFormat, question: str = "") -> Verdict:
    """Compare an answer with the gold answer.

    Args:
        gold: The right answer, plain or LaTeX.
        answer: The answer extracted from a text.
        answer_format: Rules of the data set.
        question: The question given to the policy, if known; an answer that repeats the question is wrong.

    Returns:
        The verdict; it is ungraded only if the gold answer cannot be parsed or computed.
    """
    gold, answer = bared(without_hidden(gold)), answer._replace(text=bared(answer.text))
    verdict = _compare(gold, answer, answer_format)
    # The policy controls its answers, so an answer that the verifier cannot handle counts as wrong, not as ungraded.
    if verdict.correct is None and understands(gold, answer_format):
        return Verdict(correct=False, status=Status.UNPARSEABLE, flags=(flags.NOT_UNDERSTOOD,))
    if verdict.correct and (question or answer_format.kind is Kind.INTEGER):
        return _checked_against_question(verdict, gold, answer, answer_format, question)
    return verdict


def understands(gold: str, answer_format: AnswerFormat) -> bool:
    """Return whether a gold answer can be compared with any well-formed answer."""
    if answer_format.kind is Kind.OPTION or is_option(gold):
        return True
    for letters in (False, True) if _LETTER_RUN.search(gold) else (False,):
        try:
            if is_understood(parse(gold, letters=letters)):
                return True
        except (Malformed, Suspect):
            if _is_worded(gold):
                return True
        except LimitExceeded:
            return False
    return False


def _checked_against_question(
    verdict: Verdict, gold: str, answer: Answer, answer_format: AnswerFormat, question: str
) -> Verdict:
    # A right value is still wrong if the answer does not carry out the operation that the question asks for.
    try:
        right, ours = parse(gold), _parsed(answer.text, prose=answer.prose)
    except (Malformed, Suspect, LimitExceeded):
        return verdict  # the texts are words or options, not formulas
    beside, units = ([part.unit for part in walk(node) if isinstance(part, Quantity)] for node in (right, ours))
    if any(is_second_answer(unit, beside=" ".join(beside), question=question) for unit in units):
        return _suspect(flags.CANDIDATES)
    value = ours.terms[-1] if isinstance(ours, Rel) else ours
    if answer_format.kind is Kind.INTEGER and not isinstance(
        value.value if isinstance(value, Quantity) else value, Num
    ):
        return _suspect(flags.RESTATED)
    if question and (lacks_form(question, right, ours) or contradicts(question, ours)):
        return _suspect(flags.RESTATED)
    return _suspect(flags.RESTATED) if question and is_restated(question, right, ours) else verdict


def _compare(gold: str, answer: Answer, answer_format: AnswerFormat) -> Verdict:
    verdict = _compare_text(gold, answer.text, answer_format, prose=answer.prose)
    boxes = answer.candidates
    if verdict.correct:
        for beside in answer.alternatives:
            if not _compare_text(gold, beside, answer_format, prose=False).correct:
                return _suspect(flags.HEDGE)
        # Three or more different boxes in a row are a list of candidates, unless the task asks for a list.
        if len(set(boxes)) >= _CANDIDATES and not _is_list(gold):
            return _suspect(flags.CANDIDATES)
    elif len(boxes) > 1 and _is_list(gold):
        joined = _compare_text(gold, ", ".join(boxes), answer_format, prose=False)
        if joined.correct:
            return joined
    elif len(set(boxes)) >= _CANDIDATES and verdict.correct is False:
        return Verdict(correct=False, status=verdict.status, method=verdict.method, flags=(flags.CANDIDATES,))
    return verdict


def _compare_text(gold: str, text: str, answer_format: AnswerFormat, *, prose: bool) -> Verdict:
    if _is_anagram(gold, text):
        return Verdict(correct=False, method="string")
    verdict = _compare_as_read(gold, text, answer_format, prose=prose)
    named = answer_format.kind is Kind.OPTION or is_option(gold)
    if not verdict.correct and not named and (value := without_option(text)) is not None:
        rest = _compare_as_read(gold, value, answer_format, prose=prose)
        return rest if rest.correct else verdict
    if (
        verdict.correct
        or verdict.flags
        or answer_format.kind is Kind.OPTION
        or not (_has_letter_run(gold) or _has_letter_run(text))
    ):
        return verdict
    return Verdict(correct=True, method="numeric") if _same_letters(gold, text) else verdict


def _compare_as_read(gold: str, text: str, answer_format: AnswerFormat, *, prose: bool) -> Verdict:
    if answer_format.kind is Kind.OPTION or is_option(gold):
        option = compare_option(gold, text, answer_format)
        if option is not None:
            return option
    if plain(text) == plain(gold) and plain(gold):
        return Verdict(correct=True, method="string")
    if (named := same_letters(gold, text)) is not None:
        return Verdict(correct=named, method="option")
    if (same := same_time(gold, text)) is not None:
        return Verdict(correct=same, method="string")
    bare = commands_stripped(text)
    if not bare or bare in flags.PLACEHOLDERS:
        return _suspect(flags.PLACEHOLDER)
    if flags.looks_like_code(text):
        return _suspect(flags.CODE)
    try:
        right = parse(gold)
    except (Malformed, Suspect, LimitExceeded):
        return _against_unreadable(gold, text)
    if isinstance(right, Based) and (digits := read_based(text, right.base)) is not None:
        return Verdict(correct=(right.base, right.value) == (digits.base, digits.value), method="typed")
    try:
        ours = _parsed(text, prose=prose)
    except Suspect as suspicion:
        return _suspect(suspicion.flag)
    except LimitExceeded:
        return Verdict(correct=False, status=Status.REJECTED_LIMITS, flags=(flags.HUGE,))
    except Malformed:
        return Verdict(correct=False, status=Status.UNPARSEABLE)
    if answer_format.is_tolerant and within_tolerance(right, ours, answer_format):
        return Verdict(correct=True, method="tolerance")
    verdict = _decide(right, ours)
    if not verdict.correct and "," in gold + text:  # 1,234 may be one number or two
        tried = [(right, ours)]
        for one, other in ((False, True), (True, False), (False, False)):
            try:
                pair = parse(gold, thousands=one), parse(text, thousands=other)
                again = verdict if pair in tried else _decide(*pair)
            except (Malformed, Suspect, LimitExceeded):
                continue
            if again.correct:
                return again
            tried.append(pair)
    return verdict


def _is_anagram(gold: str, text: str) -> bool:
    # Refuse a gold word with its letters in another order: as products of variables, the two would be equal.
    right, ours = (_LETTERS.fullmatch(one) for one in (gold, text))
    if right is None or ours is None:
        return False
    word, other = right[1].lower(), ours[1].lower()
    is_word = word in ("no", "on") or (len(word) > 2 and can_be_noun(word))
    return is_word and word != other and sorted(word) == sorted(other)


def _has_letter_run(text: str) -> bool:
    return _LETTER_RUN.search(text) is not None and _LETTER_RUN.search(_NAMED.sub(" ", text)) is not None


def _same_letters(gold: str, text: str) -> bool:
    # Letters are read as variables here: mg equals gm, and x\sin x equals xsinx.
    try:
        right, ours = (parse(one, letters=_has_letter_run(one)) for one in (gold, text))
    except (Malformed, Suspect, LimitExceeded):
        return False
    if holds(right, Words, Quantity, Ratio) or holds(ours, Words, Quantity, Ratio):
        return False
    if free_variables(ours) != free_variables(right):
        return False
    return _decide(right, ours).correct is True


def _parsed(text: str, *, prose: bool) -> Node:
    if (" -" in text or " +" in text) and _APART.fullmatch(text):
        raise Malformed("numbers side by side")
    try:
        return parse(text)
    except Malformed:
        # Text cut out of a sentence may contain words around the answer; it must contain exactly one value.
        if not prose:
            raise
    found = _NUMBER_OR_FORMULA.findall(text)
    if len(found) != 1 or "?" in text or _IN_FORMULA.search(text) or _GOES_ON.match(text.partition(found[0])[2]):
        raise Malformed("not one value in a sentence")
    before = _LOWER_WORD.findall(_CLAUSE.split(text[: text.index(found[0])].lower())[-1])
    if changes_unknown(" ".join(before if VERBS.intersection(before[-1:]) else before[-_WORDS_BEFORE:])):
        raise Malformed("words that may change a value")
    check_words(text)
    return parse(found[0])


def _decide(right: Node, ours: Node) -> Verdict:
    comparison = Comparison()
    try:
        check_labels(right, ours)
        correct = comparison.equal(right, ours)
    except Suspect as suspicion:
        return _suspect(suspicion.flag)
    except LimitExceeded:
        return Verdict(correct=False, status=Status.REJECTED_LIMITS, flags=(flags.HUGE,))
    except Undefined:
        return Verdict(correct=False, method="numeric")
    except CannotEvaluate:
        correct = None
    if correct is None:
        correct = equal_by_sympy(right, ours)
        if correct is not None:
            return Verdict(correct=correct, method="sympy")
        return Verdict(correct=None, status=Status.UNGRADED)
    return Verdict(correct=correct, method=comparison.method)


def _against_unreadable(gold: str, text: str) -> Verdict:
    # If the gold answer is not mathematics, two different words are wrong; anything else is ungraded.
    if _ORDINAL.sub("", commands_stripped(gold)) == _ORDINAL.sub("", commands_stripped(text)):
        return Verdict(correct=True, method="string")
    if _is_worded(gold):
        return Verdict(correct=False, method="string")
    return Verdict(correct=None, status=Status.UNPARSEABLE)


def _is_worded(gold: str) -> bool:
    return re.fullmatch(r"[a-z0-9 .,:'-]+", commands_stripped(gold)) is not None


def _is_list(gold: str) -> bool:
    try:
        node = parse(gold)
    except (Malformed, Suspect, LimitExceeded):
        return False
    return isinstance(node, Group) and not isinstance(node, Words)


def _suspect(flag: str) -> Verdict:
    return Verdict(correct=False, status=Status.HACK_SUSPECT, flags=(flag,))


def is_understood(node: Node) -> bool:
    """Return whether every value in a tree can be computed, for some values of the tree's variables."""
    if isinstance(node, Words | Const):
        return True
    if isinstance(node, Group | Matrix | Quantity | Ratio | Rel | SetOp) or any(
        isinstance(part, Quantity) for part in walk(node)
    ):
        return all(map(is_understood, children(node)))
    names = sorted(free_variables(node))
    for point in chain(integer_points(names), real_points(names)):
        try:
            Evaluation(point).value(node)
        except (Undefined, CannotEvaluate):
            continue
        except LimitExceeded:
            return False
        return True
    return False
