import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import sympy
from sympy.parsing.tests import test_latex as their_antlr
from sympy.parsing.tests import test_latex_lark as their_lark

from turntree.rewards import score_batch

HERE = Path(__file__).parent
DISAGREEMENTS = tomllib.loads((HERE / "disagreements.toml").read_text(encoding="utf-8"))


def known(peer: str) -> dict[str, str]:
    return {key: entry["right"] for entry in DISAGREEMENTS[peer] for key in entry["pairs"]}


def math_verify_pairs() -> list[tuple[str, str, bool]]:
    # From the tests of math-verify 0.9.0 (gold answer, answer, their verdict), without pairs of several lines,
    # with a sentence as gold answer, or with an option.
    lines = (HERE / "math_verify_pairs.jsonl").read_text(encoding="utf-8").splitlines()
    return [(gold, answer, right) for gold, answer, right in map(json.loads, lines)]


def sympy_pairs() -> list[tuple[str, sympy.Basic]]:
    # LaTeX and its expression, from sympy's tests. sympy does not print names with primes and indices faithfully.
    tables: list[Iterable[tuple[str, Any]]] = [their_antlr.GOOD_PAIRS]
    for name, table in sorted(vars(their_lark).items()):
        if name.endswith("_PAIRS") and not name.startswith(("UNEVALUATED", "SYMBOL")):
            tables.append(table)
    return [*{latex: sympy.sympify(value) for table in tables for latex, value in table}.items()]


def printed(value: sympy.Basic) -> str:
    return f"\\boxed{{{sympy.latex(value, ln_notation=True)}}}"


def disagreements(found: Iterable[tuple[str, bool]], peer: str) -> set[str]:
    # New disagreements, and known ones that have ended.
    return {key for key, agreed in found if agreed is (key in known(peer))}


@pytest.fixture(scope="module")
def beside_math_verify() -> list[tuple[str, bool]]:
    pairs = math_verify_pairs()
    scores = score_batch([answer for _, answer, _ in pairs], [gold for gold, _, _ in pairs], "math")
    return [
        (f"{gold} <- {answer}", bool(score.correct) is right)
        for (gold, answer, right), score in zip(pairs, scores, strict=True)
    ]


def test_every_disagreement_with_math_verify_is_judged(beside_math_verify: list[tuple[str, bool]]) -> None:
    assert disagreements(beside_math_verify, "math-verify") == set()


def test_a_new_disagreement_is_noticed(beside_math_verify: list[tuple[str, bool]]) -> None:
    first = next(key for key, agreed in beside_math_verify if agreed)
    turned = [(key, agreed and key != first) for key, agreed in beside_math_verify]
    assert disagreements(turned, "math-verify") == {first}


def test_every_disagreement_with_sympys_reading_is_judged() -> None:
    pairs = sympy_pairs()
    scores = score_batch([printed(value) for _, value in pairs], [latex for latex, _ in pairs], "math")
    found = [(latex, bool(score.correct)) for (latex, _), score in zip(pairs, scores, strict=True)]
    assert disagreements(found, "sympy") == set()


def test_an_expression_more_by_one_is_never_right() -> None:
    numbers = [pair for pair in sympy_pairs() if isinstance(pair[1], sympy.Expr) and pair[1].is_commutative]
    pairs = [(latex, value + 1) for latex, value in numbers if value + 1 != value]
    scores = score_batch([printed(value) for _, value in pairs], [latex for latex, _ in pairs], "math")
    assert len(pairs) > 150
    assert [latex for (latex, _), score in zip(pairs, scores, strict=True) if score.correct] == []


def test_the_judgements_say_who_is_right_and_why() -> None:
    for entry in [entry for entries in DISAGREEMENTS.values() for entry in entries]:
        assert entry["right"] in ("theirs", "ours", "neither")
        assert entry["why"]
        assert entry["pairs"]
