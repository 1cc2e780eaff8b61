"""Scoring of texts against gold answers.

A score depends only on the text, the gold answer, the question and the answer format, not on the thread or process
that computes it.
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
from turntree.rewards.grader import Grader, default_grader
from turntree.rewards.reading.extract import Answer, Extraction, extract
from turntree.rewards.result import Score, Verdict

_WRONG: Verdict | Future[Verdict] = Verdict(correct=False)
_Comparisons = dict[
    tuple[str, Answer, str], Verdict | Future[Verdict]
]  #: comparisons by (gold answer, answer, question)


class _Pending(NamedTuple):
    extraction: Extraction
    verdict: Verdict | Future[Verdict]
    seconds: float


def score(
    prediction: str,
    gold: str,
    answer_format: AnswerFormat | str = EXACT,
    *,
    question: str | None = None,
    grader: Grader | None = None,
) -> Score:
    r"""Score one text.

    Args:
        prediction: The policy's own text, without tool output or text of the environment.
        gold: The right answer, plain or LaTeX.
        answer_format: Rules of the data set, or the data set's name.
        question: The question given to the policy; an answer that repeats it is wrong. Pass ``""`` if there is no
            question. With ``None``, ``score`` warns ``MissingQuestion`` if the answer format needs a question.
        grader: The grader; by default the one that the process shares.

    Returns:
        The score, after at most about 1.25 times the grader's deadline (one second by default).

    Raises:
        UnknownAnswerFormat: ``answer_format`` names no data set.

    Example:
        >>> score("It is a half.\n#### 0.5", "1/2", question="What is 1 - 1/2?").correct
        True
    """
    rules = _resolved(answer_format)
    if question is None:
        warn_missing_question(rules, "question")
    return _finish(_start(prediction, gold, rules, question or "", grader or default_grader(), {}))


def score_batch(
    predictions: Sequence[str],
    golds: Sequence[str],
    answer_format: AnswerFormat | str | Sequence[AnswerFormat | str] = EXACT,
    *,
    questions: Sequence[str] | None = None,
    grader: Grader | None = None,
) -> list[Score]:
    """Score many texts; texts with equal gold answer, answer and question share one comparison.

    Args:
        predictions: The policy's texts, shape (samples,).
        golds: The right answers, shape (samples,).
        answer_format: One format for all texts, or one per text.
        questions: The questions given to the policy, shape (samples,), as in ``score``.
        grader: The grader; by default the one that the process shares.

    Returns:
        One score per text, in order.

    Raises:
        ValueError: The arguments differ in length.
        UnknownAnswerFormat: An answer format does not exist.
    """
    return [_finish(entry) for entry in _start_all(predictions, golds, answer_format, questions, grader)]


async def ascore_batch(
    predictions: Sequence[str],
    golds: Sequence[str],
    answer_format: AnswerFormat | str | Sequence[AnswerFormat | str] = EXACT,
    *,
    questions: Sequence[str] | None = None,
    grader: Grader | None = None,
) -> list[Score]:
    """Run ``score_batch`` without blocking the event loop."""
    pending = await asyncio.to_thread(_start_all, predictions, golds, answer_format, questions, grader)
    futures = [asyncio.wrap_future(entry.verdict) for entry in pending if isinstance(entry.verdict, Future)]
    if futures:
        await asyncio.wait(futures)
    return [_finish(entry) for entry in pending]


def warn_missing_question(rules: AnswerFormat, name: str) -> None:
    """Warn if the answer format needs a question that was not given.

    Args:
        rules: The answer format.
        name: Name of the argument by which the caller gives the question.
    """
    if rules.needs_question:
        warnings.warn(
            f"the answer format {rules.name!r} needs the question, but {name!r} was not given: "
            "an answer that copies the question counts as right; pass the question, or '' if there is none",
            MissingQuestion,
            stacklevel=3,
        )


def _start_all(
    predictions: Sequence[str],
    golds: Sequence[str],
    answer_format: AnswerFormat | str | Sequence[AnswerFormat | str],
    questions: Sequence[str] | None,
    grader: Grader | None,
) -> list[_Pending]:
    if len(predictions) != len(golds):
        raise ValueError(
            f"expected one gold answer per text, got {len(predictions)} texts and {len(golds)} gold answers"
        )
    if isinstance(answer_format, AnswerFormat | str):
        distinct = [_resolved(answer_format)]
        answer_formats = distinct * len(golds)
    else:
        answer_formats = [_resolved(one) for one in answer_format]
        distinct = list(dict.fromkeys(answer_formats))
    if len(answer_formats) != len(golds):
        raise ValueError(
            f"expected one answer format, or one per text, got {len(answer_formats)} for {len(golds)} texts"
        )
    if questions is None:
        for rules in distinct:
            warn_missing_question(rules, "questions")
    asked = [""] * len(golds) if questions is None else questions
    if len(asked) != len(golds):
        raise ValueError(f"expected one question per text, got {len(asked)} for {len(golds)} texts")
    grader = grader or default_grader()
    by_rules: dict[AnswerFormat, _Comparisons] = {}
    comparisons: _Comparisons = {}  # those for ``last_rules``, since hashing an AnswerFormat per text is slow
    last_rules: AnswerFormat | None = None
    pending = []
    for prediction, gold, rules, question in zip(predictions, golds, answer_formats, asked, strict=True):
        if rules is not last_rules:
            comparisons, last_rules = by_rules.setdefault(rules, {}), rules
        pending.append(_start(prediction, gold, rules, question, grader, comparisons))
    return pending


def _start(
    prediction: str, gold: str, rules: AnswerFormat, question: str, grader: Grader, comparisons: _Comparisons
) -> _Pending:
    started = perf_counter()
    extraction = extract(prediction, rules)
    found, verdict = extraction.found, _WRONG
    if found is not None:
        triple = (gold, found, question)
        # Equal answers of a batch share one comparison, even while the comparison is running.
        compared = comparisons.get(triple)
        if compared is None:
            compared = comparisons[triple] = grader.compare(gold, found, rules, question)
        verdict = compared
    return _Pending(extraction, verdict, perf_counter() - started)


def _finish(pending: _Pending) -> Score:
    extraction, verdict, seconds = pending
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
