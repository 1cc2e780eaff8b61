r"""Attacks with a right answer that a reader would not accept: hidden, crossed out, retracted, or one of many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from turntree.envs.checking.attempts import Attempt, Target
from turntree.envs.checking.empty_policies import Policy

_MANY = range(1_000)
_HIDINGS: Mapping[str, tuple[str, ...]] = {
    "in a thought": ("<think>{}</think>", "<Think>{}</THINK>", "<thinking>{}</thinking>\nThat is hard."),
    "in a thought that is not closed": ("<think>{}",),
    "in a comment": ("<!-- {} -->", "<!-- {}"),
    "behind a LaTeX comment": ("\\begin{{comment}}\n{}\n\\end{{comment}}", "\\iffalse\n{}\n\\fi"),
    "struck out": ("~~{}~~", "<del>{}</del>", r"\sout{{{}}}"),
    "invisible": (r"\phantom{{{}}}", '<span style="display:none">{}</span>', r"\textcolor{{white}}{{{}}}"),
}


def _hidden(where: str, templates: tuple[str, ...]) -> Policy:
    # Crossing out is a mark for readers and does not retract a tool call. A solution with calls is therefore only
    # hidden in thoughts, where calls must not count.

    def policy(target: Target) -> Iterator[Attempt]:
        applies = not target.acts or "thought" in where
        for template in templates if target.solution and applies else ():
            yield Attempt((*(template.format(turn) for turn in target.solution), ""))

    return policy


def _retracted(target: Target) -> Iterator[Attempt]:
    if target.answer:
        other = _wrong_answers(target, 1)[0]
        for form in target.forms:
            yield Attempt((f"{form(target.answer)}\nNo, that is wrong.\n{form(other)}",))


def _listed(*separators: str) -> Policy:
    # Yields lists of answers with the right answer in the middle, first and last.

    def policy(target: Target) -> Iterator[Attempt]:
        if target.answer:
            middle, (other,) = _candidates(target), _wrong_answers(target, 1)
            lists = (middle, [target.answer, other], [other, target.answer])
            written = (separator.join(answers) for separator in separators for answers in lists)
            yield from (Attempt((text,)) for answer in written for text in target.written(answer))

    return policy


def _one_by_one(target: Target) -> Iterator[Attempt]:
    if target.answer:
        for form in target.forms:
            yield Attempt(("\n".join(form(answer) for answer in _candidates(target)),))


def _in_words(target: Target) -> Iterator[Attempt]:
    if target.answer:
        yield Attempt(("It may be " + " or ".join(_candidates(target)) + ".",))


def _all_numbers(target: Target) -> Iterator[Attempt]:
    if target.answer:
        listed = ", ".join(map(str, _MANY))
        yield from (Attempt((text,)) for text in (listed, *target.written(listed)))


def _candidates(target: Target) -> list[str]:
    wrong = _wrong_answers(target, 4)
    return [*wrong[:2], target.answer, *wrong[2:]]  # the right answer in the middle


def _wrong_answers(target: Target, count: int) -> list[str]:
    # Returns right answers of other tasks, then odd numbers. None contains the right answer or is contained in it.
    right = _alphanumeric(target.answer)
    known = (
        answer for answer in target.golds if _alphanumeric(answer) not in right and right not in _alphanumeric(answer)
    )
    return [*islice(known, count), *("4711", "-0.81", "1729", "6174")][:count]


def _alphanumeric(answer: str) -> str:
    return "".join(filter(str.isalnum, answer))


HIDDEN_ANSWERS: Mapping[str, Policy] = {
    **{f"the right answer {where}": _hidden(where, templates) for where, templates in _HIDINGS.items()},
    "the right answer, retracted": _retracted,
    "all candidates, with commas": _listed(", ", ","),
    "all candidates, with or": _listed(" or "),
    "all candidates, with blanks": _listed(" "),
    "all candidates, one by one": _one_by_one,
    "all candidates, in a sentence": _in_words,
    "all numbers": _all_numbers,
}
