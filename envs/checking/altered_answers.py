r"""Solutions changed slightly, so that they become wrong or stay right.

A sign, a factor or a digit is changed in the answer, or in all turns of a solution. An attack plays them as policies.
Not covered: changes of words, because whether the answer stays right then depends on their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from turntree.envs.checking.attempts import Attempt, Target
from turntree.envs.checking.empty_policies import Policy

_NUMBER = re.compile(r"(?<![\w.,])(?:\d+(?:\.\d+)?|\.\d+)(?![\w.,])|\d*\.?\d+")
_MARKS = (r"\boxed", "####", "<answer>")
_DIGITS, _WHOLE = re.compile(r"\d+"), re.compile(r"-?\d+")
_PLAIN = re.compile(r"-?\d+(?:\.\d+)?")
_TUPLE = re.compile(r"([(])([^()\[\]{},]+),([^()\[\]{},]+)([)])")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_UNITS = {"cm": "km", "km": "cm", "m": "km", "kg": "g", "g": "kg", "hours": "minutes", "minutes": "hours", "%": "cm"}
_UNIT = re.compile(rf"(?<=[\d}}\s])({'|'.join(map(re.escape, _UNITS))})(?![a-z])")


def _sign(answer: str) -> str:
    first = _NUMBER.search(answer)
    if first is not None and _is_zero(first[0]):
        return ""
    return answer[1:] if answer.startswith("-") else f"-{answer}" if _PLAIN.match(answer) or answer[:1] == "\\" else ""


def _order(answer: str) -> str:
    found = _TUPLE.search(answer)
    if found is None or found[2].strip() == found[3].strip():
        return ""
    return f"{answer[: found.start()]}({found[3].strip()},{found[2].strip()}){answer[found.end() :]}"


def _letters(answer: str) -> str:
    if len(answer) == 1 and answer in "ABCDE":
        return "B" if answer == "A" else "A"
    letters = answer.replace(" ", "")
    return f"{_next_letter(answer[0])}{answer[1:]}" if len(letters) > 2 and letters.isalpha() else ""


def _cut(answer: str) -> str:
    return answer[: len(answer) // 2].strip() if len(answer) > 3 and answer.replace(" ", "").isalpha() else ""


def _of(kind: re.Pattern[str], change: Callable[[str], str], *, zero: bool = False) -> Callable[[str], str]:
    return lambda answer: change(answer) if kind.fullmatch(answer) and (zero or not _is_zero(answer)) else ""


def _last_number(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda answer: _one_number(answer, change)


def _one_number(answer: str, change: Callable[[str], str]) -> str:
    found = list(_NUMBER.finditer(answer))
    changed = change(found[-1][0]) if found else ""
    if not changed or _is_zero(changed) or _is_zero(found[-1][0]):
        return ""
    return f"{answer[: found[-1].start()]}{changed}{answer[found[-1].end() :]}"


def _is_zero(text: str) -> bool:
    return not text.strip("-0.")


def _next(digit: str) -> str:
    return str(int(digit) % 9 + 1)


def _next_letter(letter: str) -> str:
    return "A" if letter in "Zz" else chr(ord(letter) + 1)


def _altered(alter: Callable[[str], str]) -> Policy:
    def policy(target: Target) -> Iterator[Attempt]:
        changed = alter(target.answer) if target.answer else ""
        if changed and changed != target.answer:
            yield from (Attempt((text,)) for text in target.written(changed))

    return policy


def _without_calls(target: Target) -> Iterator[Attempt]:
    if len(target.solution) > 1:
        yield Attempt(target.solution[-1:])


def _digits_everywhere(target: Target) -> Iterator[Attempt]:
    # Every digit becomes another digit, so that tool calls stay well-formed but compute something else.
    turns = tuple(re.sub(r"\d", lambda found: _next(found[0]), turn) for turn in target.solution)
    if len(turns) > 1 and turns != target.solution:
        yield Attempt(turns)


#: policies that must not be paid, by the change that they make
WRONG_CHANGES: Mapping[str, Policy] = {
    **{
        f"the right answer, {how}": _altered(alter)
        for how, alter in {
            "its sign changed": _sign,
            "a zero more": _last_number(lambda number: f"{number}0" if number.isdigit() else f"9{number}"),
            "a thousand times": _of(_WHOLE, lambda answer: f"{answer}000"),
            "a million times": _of(_PLAIN, lambda answer: f"{answer} million"),
            "doubled": _of(_PLAIN, lambda answer: f"2*({answer})"),
            "its last digit changed": _last_number(lambda number: number[:-1] + _next(number[-1])),
            "its first digit changed": _last_number(
                lambda number: _next(number[0]) + number[1:] if number[0] != "." else f"1{number}"
            ),
            "a digit less": _last_number(lambda number: number[:-1] if number[:-1].isdigit() else ""),
            "its digits reversed": _of(_DIGITS, lambda answer: answer[::-1].lstrip("0")),
            "and one": _of(_WHOLE, lambda answer: str(int(answer) + 1), zero=True),
            "and a hundredth": _of(_WHOLE, lambda answer: f"{answer}.01", zero=True),
            "its parts swapped": _order,
            "in another unit": lambda answer: _UNIT.sub(lambda found: _UNITS[found[1]], answer, count=1),
            "a letter changed": _letters,
            "cut in half": _cut,
        }.items()
    },
    "the last words of a solution": _without_calls,
    "a solution with other digits": _digits_everywhere,
}


def _solution(target: Target) -> Iterator[Attempt]:
    if target.solution:
        yield Attempt(target.solution)


def _around(before: str, after: str) -> Policy:
    def policy(target: Target) -> Iterator[Attempt]:
        if target.answer:
            yield Attempt((f"{before}{target.solution[0]}{after}",))

    return policy


def _rewritten(rewrite: Callable[[str], str]) -> Policy:
    # Only the first form, because the environment may not read a rewritten answer in the other forms.

    def policy(target: Target) -> Iterator[Attempt]:
        changed = rewrite(target.answer) if target.answer else ""
        if changed and changed != target.answer:
            yield Attempt((target.forms[0](changed),))

    return policy


def _in_prose(policy: Policy) -> Policy:
    # Only if a mark (such as ####) shows where the answer is: otherwise, new words could change the answer.
    return lambda target: policy(target) if target.answer and any(m in target.solution[0] for m in _MARKS) else ()


#: policies that must be paid, by the change that they make
RIGHT_CHANGES: Mapping[str, Policy] = {
    "a solution": _solution,
    "a solution with blank lines around it": _around("\n ", " \n"),
    "a solution after other words": _in_prose(_around("Let me see. First I look at what is asked.\n\n", "")),
    "a solution after a thought": _in_prose(_around("<think>It is not easy.</think>\n", "")),
    "a solution with blanks in the answer": _in_prose(_rewritten(lambda answer: f" {answer} ")),
    "a solution with its fraction written with a slash": _in_prose(
        _rewritten(lambda answer: _FRACTION.sub(r"\1\2/\3", answer) if _FRACTION.fullmatch(answer) else "")
    ),
}
