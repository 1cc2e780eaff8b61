"""Scores of texts.

Invariant: a score depends on the text, the gold answer and the answer format alone,
in whichever thread, process or order it was computed. Everything beyond
strings and fractions runs in the worker pool, never in the caller.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import NamedTuple

from turntree.rewards.answer_format import EXACT, AnswerFormat, answer_format_for
from turntree.rewards.errors import MissingQuestion
from turntree.rewards.judge import Judge, default_judge
from turntree.rewards.reading.extract import Answer, Extraction, extract
from turntree.rewards.result import Score, Verdict

_WRONG: Verdict | Future[Verdict] = Verdict(correct=False)
_Known = dict[tuple[str, Answer, str], Verdict | Future[Verdict]]
"""Comparisons by gold answer, answer and question."""


class _Begun(NamedTuple):
    """A text whose answer was found, and its comparison in progress."""

    extraction: Extraction
    verdict: Verdict | Future[Verdict]
    seconds: float


def score(
    prediction: str,
    gold: str,
    answer_format: AnswerFormat | str = EXACT,
    *,
    question: str | None = None,
    judge: Judge | None = None,
) -> Score:
    r"""Score one text.

    Args:
        prediction: The policy's own text; never tool output or text of the environment.
        gold: The right answer, plain or LaTeX.
        answer_format: Rules of the data set, or the data set's name.
        question: The question asked of the policy; with it, an answer that repeats the question is wrong. Where a
            answer format needs it and it is not given, a ``MissingQuestion`` warning says so; ``""``: there is none.
        judge: The judge; by default one shared by the whole process.

    Returns:
        The score; it takes at most little more than 1.25 times the judge's deadline (a second),
        whatever the text holds.

    Raises:
        UnknownAnswerFormat: ``answer_format`` names no data set.

    Example:
        >>> score("It is a half.\n#### 0.5", "1/2", question="What is 1 - 1/2?").correct
        True
    """
    rules = _resolved(answer_format)
    if question is None:
        say_missing_question(rules, "question")
    return _finish(_begin(prediction, gold, rules, question or "", judge or default_judge(), {}))


def score_batch(
    predictions: Sequence[str],
    golds: Sequence[str],
    answer_format: AnswerFormat | str | Sequence[AnswerFormat | str] = EXACT,
    *,
    questions: Sequence[str] | None = None,
    judge: Judge | None = None,
) -> list[Score]:
    """Score many texts; equal pairs of gold and answer are compared once.

    Args:
        predictions: The policy's texts, shape (samples,).
        golds: The right answers, shape (samples,).
        answer_format: One for all, or one a sample.
        questions: The questions asked of the policy, shape (samples,), as in ``score``; an empty one: there is none.
        judge: The judge; by default one shared by the whole process.

    Returns:
        One score a text, in order.

    Raises:
        ValueError: The arguments differ in length.
        UnknownAnswerFormat: A answer format does not exist.
    """
    return [_finish(begun) for begun in _begin_all(predictions, golds, answer_format, questions, judge)]


async def ascore_batch(
    predictions: Sequence[str],
    golds: Sequence[str],
    answer_format: AnswerFormat | str | Sequence[AnswerFormat | str] = EXACT,
    *,
    questions: Sequence[str] | None = None,
    judge: Judge | None = None,
) -> list[Score]:
    """``score_batch`` for an event loop, which continues while answers are found and compared."""
    begun = await asyncio.to_thread(_begin_all, predictions, golds, answer_format, questions, judge)
    pending = [asyncio.wrap_future(entry.verdict) for entry in begun if isinstance(entry.verdict, Future)]
    if pending:
        await asyncio.wait(pending)
    return [_finish(entry) for entry in begun]


def say_missing_question(rules: AnswerFormat, name: str) -> None:
    """Warn, if a answer format needs the question, that it was not given.

    Args:
        name: What it would be given as.
    """
    if rules.needs_question:
        warnings.warn(
            f"the answer format {rules.name!r} needs the question, which is not given as {name!r}: an answer that "
            "copies it is paid as if it were worked out",
            MissingQuestion,
            stacklevel=3,
        )


def _begin_all(
    predictions: Sequence[str],
    golds: Sequence[str],
    answer_format: AnswerFormat | str | Sequence[AnswerFormat | str],
    questions: Sequence[str] | None,
    judge: Judge | None,
) -> list[_Begun]:
    if len(predictions) != len(golds):
        raise ValueError(f"expected one gold answer a text, got {len(predictions)} texts and {len(golds)} gold answers")
    if isinstance(answer_format, AnswerFormat | str):
        distinct = [_resolved(answer_format)]
        answer_formats = distinct * len(golds)
    else:
        answer_formats = [_resolved(one) for one in answer_format]
        distinct = list(dict.fromkeys(answer_formats))
    if len(answer_formats) != len(golds):
        raise ValueError(f"expected one answer format, or one a text, got {len(answer_formats)} for {len(golds)} texts")
    if questions is None:
        for rules in distinct:
            say_missing_question(rules, "questions")
    asked = [""] * len(golds) if questions is None else questions
    if len(asked) != len(golds):
        raise ValueError(f"expected one question a text, got {len(asked)} for {len(golds)} texts")
    judge = judge or default_judge()
    compared: dict[AnswerFormat, _Known] = {}
    known: _Known = {}
    last_rules: AnswerFormat | None = None
    begun = []
    for prediction, gold, rules, question in zip(predictions, golds, answer_formats, asked, strict=True):
        if rules is not last_rules:
            known, last_rules = compared.setdefault(rules, {}), rules
        begun.append(_begin(prediction, gold, rules, question, judge, known))
    return begun


def _begin(prediction: str, gold: str, rules: AnswerFormat, question: str, judge: Judge, known: _Known) -> _Begun:
    """Find a text's answer and begin its comparison, unless it is ``known``."""
    started = perf_counter()
    extraction = extract(prediction, rules)
    found, verdict = extraction.found, _WRONG
    if found is not None:
        triple = (gold, found, question)
        compared = known.get(triple)
        if compared is None:
            compared = known[triple] = judge.compare(gold, found, rules, question)
        verdict = compared
    return _Begun(extraction, verdict, perf_counter() - started)


def _finish(begun: _Begun) -> Score:
    extraction, verdict, seconds = begun
    if isinstance(verdict, Future):
        verdict = verdict.result()
    found, correct = extraction.found, verdict.correct
    answer = found.text if found is not None else None
    return Score(
        score=1.0 if correct else 0.0,
        correct=correct,
        status=verdict.status if found is not None else extraction.status,
        answer=answer,
        guessed=found is not None and found.guessed,
        method=verdict.method,
        components=_COMPONENTS[answer is not None, correct is not None],
        flags=extraction.flags + verdict.flags if verdict.flags else extraction.flags,
        seconds=seconds + verdict.seconds,
    )


_COMPONENTS = {
    (answered, decided): {"answered": float(answered), "decided": float(decided)}
    for answered in (False, True)
    for decided in (False, True)
}


def _resolved(answer_format: AnswerFormat | str) -> AnswerFormat:
    return answer_format_for(answer_format) if isinstance(answer_format, str) else answer_format
