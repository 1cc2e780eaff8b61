import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_answers import BOXED, CODE
from hypothesis import example, given, settings
from hypothesis import strategies as st
from interpreter import python
from tables import table

from turntree.rewards import EXACT, Answer, extract, score_batch
from turntree.rewards.formula.compare import compare

ROOT = Path(__file__).resolve().parents[2]
EVALUATORS = {
    "eval", "exec", "compile", "sympify", "parse_expr", "parse_latex", "parse_mathematica", "S", "lambdify",
    "literal_eval", "__import__", "import_module", "system", "popen",
}  # fmt: skip


def evaluators_in(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id in EVALUATORS:
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and node.attr in EVALUATORS:
            if not (isinstance(node.value, ast.Name) and node.value.id == "re" and node.attr == "compile"):
                found.add(node.attr)
        elif isinstance(node, ast.alias) and node.name.rpartition(".")[2] in EVALUATORS:
            found.add(node.name)
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "rewards").rglob("*.py")), ids=lambda path: path.stem)
def test_no_module_of_rewards_calls_an_evaluator(path: Path) -> None:
    assert evaluators_in(path.read_text()) == set()


def test_pickles_are_read_only_from_our_own_processes_and_hostile_answers_are_among_the_payloads() -> None:
    sources = [(path.parent.name, path.read_text()) for path in (ROOT / "rewards").rglob("*.py")]
    assert not any("pickle" in text for _, text in sources)
    assert {folder for folder, text in sources if "multiprocessing" in text} == {"isolation"}
    assert len(BOXED) > 40
    assert len(CODE) > 20


@pytest.mark.parametrize(("source", "found"), table(__file__, "evaluators"))
def test_the_search_above_finds_evaluators(source: str, found: list[str]) -> None:
    assert evaluators_in(source) == set(found)


@pytest.fixture
def payloads(tmp_path: Path) -> Iterator[list[str]]:
    # Each payload would write a file if it ran.
    canary = tmp_path / "canary"
    yield [code.replace("{canary}", str(canary)) for code in CODE]
    assert not canary.exists()


@pytest.mark.parametrize("wrap", ["\\boxed{{{}}}", "The answer is {}", "#### {}"])
def test_no_payload_runs_or_is_right(wrap: str, payloads: list[str]) -> None:
    scores = score_batch([wrap.format(payload) for payload in payloads], ["7"] * len(payloads))
    assert not any(one.correct for one in scores)


def test_payloads_raise_no_audit_event_that_could_harm(payloads: list[str]) -> None:
    # In a separate process, because an audit hook cannot be removed.
    code = table(__file__, "watched_payloads").replace("PAYLOADS", repr(payloads))
    assert python("-c", code, check=True).stdout.strip() == "[] True"


TOKENS = st.sampled_from(
    [
        *"0123456789xyzabcien+-*/^_=<>()[]{}|,.:!%$&' \n",
        "\\frac", "\\sqrt", "\\text{", "\\pm", "\\cup", "\\in", "\\sum_{k=1}^{", "\\infty", "\\le", "\\pi", "\\left(",
        "\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", "\\sin", "\\log_", "\\binom", "\\boxed{", "and", "or", "not",
        "eval(", "__import__", "10^{10}", "!", "\\circ", "\\overline{", "\\mathbb{R}", "\u200b", "½",
    ]
)  # fmt: skip


@settings(max_examples=150)
@given(gold=st.lists(TOKENS, max_size=8).map("".join), answer=st.lists(TOKENS, max_size=14).map("".join))
@example(gold="5", answer="5=")
@example(gold="\\frac{", answer="1")
def test_any_sequence_of_tokens_gets_a_verdict(gold: str, answer: str) -> None:
    if "\\sum" in gold and "\\sum" in answer:  # the last stage may take long, which the pool bounds
        return
    assert compare(gold, Answer(answer), EXACT).correct in (True, False, None)


@settings(max_examples=100)
@given(text=st.text(max_size=200))
def test_any_text_is_searched_without_error(text: str) -> None:
    found = extract(text)
    assert (found.answer is None) == (found.found is None)


@settings(max_examples=60)
@given(value=st.fractions(max_denominator=10**6), other=st.fractions(max_denominator=10**6))
def test_fractions_are_equal_just_when_they_are(value, other) -> None:
    gold = f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
    assert compare(gold, Answer(f"{other.numerator}/{other.denominator}"), EXACT).correct is (value == other)
    assert compare(gold, Answer(f"{3 * value.numerator}/{3 * value.denominator}"), EXACT).correct is True
