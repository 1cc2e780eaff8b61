"""Schemas equal those of ``transformers.utils.get_json_schema``.

Left out is what transformers cannot read: ``name (type):`` in a docstring, choices that are not strings, choices for
two arguments, tuples of one, a continued line that begins like an argument. A bare ``list`` or ``tuple`` is an object
there.
"""

from collections.abc import Callable
from typing import Any, Literal, Optional, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from turntree.envs import Context, ToolDefinitionError, ToolError
from turntree.envs.tools.arguments import check_arguments
from turntree.envs.tools.schema import function_schema, parse_docstring


def search(query: str, limit: int = 5) -> list[str]:
    """Search the library.

    Longer words first.

    Args:
        query: What to look for,
            in a few words
        limit: Results at most

    Returns:
        Titles, best first
    """
    return [query] * limit


def test_the_schema_of_a_function_in_full_with_lines_that_continue_an_argument() -> None:
    assert function_schema(search) == table(__file__, "search_schema")
    doc = parse_docstring("Do.\n\nArgs:\n    a (int): one,\n        note: not an argument\n    b: two")
    assert doc.arguments == {"a": "one, note: not an argument", "b": "two"}


@pytest.mark.parametrize(
    ("parameter", "doc", "complaint"), [("a: int", None, "needs a docstring"), *table(__file__, "no_tools")]
)
def test_what_is_missing_is_named(parameter: str, doc: str, complaint: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def f({parameter}) -> int:\n    {doc or None!r}", scope)
    with pytest.raises(ToolDefinitionError, match=complaint):
        function_schema(scope["f"])


SCOPE: dict[str, Any] = {**{"Any": Any, "Literal": Literal, "Optional": Optional, "Union": Union, "Context": Context}}

basic = st.sampled_from(["int", "float", "str", "bool"])
literals = st.lists(st.sampled_from(['"a"', '"b"', "1", "2"]), min_size=1, max_size=3, unique=True).map(
    lambda values: f"Literal[{', '.join(values)}]"
)
hints = st.recursive(
    basic | literals | st.sampled_from(["Any", "dict", "dict[str, int]"]),
    lambda inner: st.one_of(
        inner.map("list[{}]".format),
        inner.map("dict[str, {}]".format),
        inner.map("Optional[{}]".format),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"tuple[{', '.join(parts)}]"),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"Union[{', '.join(parts)}]"),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: " | ".join([*parts, "None"])),
    ),
    max_leaves=4,
)
words = st.lists(st.sampled_from(["a", "word", "of", "advice:", "(really)", "1.5"]), min_size=1, max_size=6).map(
    " ".join
)
CHOICES = [' (choices: ["red", "green"])', ' (Choices:  [" a "])']
names = st.lists(st.sampled_from(["query", "limit", "x", "y_2", "Mode"]), max_size=4, unique=True)


@st.composite
def sources(draw: st.DrawFn) -> str:
    parameters, described = [], []
    optional = False
    for name in draw(names):
        hint = draw(hints)
        optional = optional or draw(st.booleans())
        parameters.append(f"{name}: {hint}{' = None' if optional else ''}")
        lines = [f"        {name}: {draw(words)}"]
        if draw(st.booleans()):
            lines.append(f"            and {draw(words)}")
        if name == "x":
            lines[-1] += draw(st.sampled_from(["", *CHOICES]))
        described += lines
    returns = draw(st.sampled_from(["", " -> int", " -> list[str]", " -> None"]))
    body = [draw(words), *draw(st.sampled_from([[], ["", "    More of it.", "", "    And more."]]))]
    if described:
        body += ["", "    Args:", *described]
    if draw(st.booleans()):
        body += ["", "    Returns:", f"        {draw(words)}"]
    if draw(st.booleans()):
        body += ["", "    Raises:", "        ValueError: never"]
    doc = "\n".join(body)
    return f'def f({", ".join(parameters)}){returns}:\n    """{doc}\n    """\n'


def build(source: str) -> Callable[..., Any]:
    scope = dict(SCOPE)
    exec(source, scope)
    function: Callable[..., Any] = scope["f"]
    return function


@settings(max_examples=60)
@given(source=sources())
def test_the_schema_equals_that_of_transformers(source: str) -> None:
    utils = pytest.importorskip("transformers.utils", reason="the reference is transformers.utils.get_json_schema")
    function = build(source)
    assert function_schema(function) == utils.get_json_schema(function)


@settings(max_examples=20)
@given(source=sources())
def test_a_hidden_context_or_an_instance_changes_nothing_in_the_schema(source: str) -> None:
    for first in ("self", "context: Context"):
        hidden = source.replace("def f(", f"def f({first}, ", 1).replace(", )", ")", 1)
        assert function_schema(build(hidden)) == function_schema(build(source))


def book(
    title: str,
    year: int = 0,
    price: float = 0.0,
    new: bool = False,
    tags: list[str] = [],  # noqa: B006
    stock: dict[str, int] = {},  # noqa: B006
    position: tuple[int, str] = (0, ""),
    kind: Literal["paper", "cloth"] = "paper",
    note: str | None = None,
    code: int | str = 0,
    parts: Literal["all", 0] | list[int] = 0,
    extra: Any = None,
) -> None:
    """Add a book.

    Args:
        title: Its title
        year: Year
        price: Price
        new: Whether it is new
        tags: Tags
        stock: Copies by shop
        position: Shelf and letter
        kind: Binding
        note: A note
        code: A code
        parts: Parts
        extra: Anything
    """


SCHEMA = function_schema(book)


@pytest.mark.parametrize(
    "arguments", [*table(__file__, "fitting_arguments"), {"note": None, "extra": {"any": [1, None]}}]
)
def test_arguments_that_fit_pass_unchanged(arguments: dict[str, Any]) -> None:
    given = {"title": "Emma", **arguments}
    assert repr(check_arguments(SCHEMA, given)) == repr(given)


def test_a_float_with_an_integral_value_is_an_integer_where_the_schema_wants_one() -> None:
    given = {"title": "Emma", "year": 230.0, "price": 2.0, "stock": {"x": 1.0}, "code": 7.0, "parts": [1.0]}
    fitted = check_arguments(SCHEMA, {**given, "position": [3.0, "c"]})
    assert repr({**given, "year": 230, "stock": {"x": 1}, "code": 7, "parts": [1], "position": [3, "c"]}) == repr(
        fitted
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        *table(__file__, "mistaken_arguments"),
        ({"title": None}, "must be of type string, got null"),
        ({"title": ["x" * 10_000]}, "must be of type string, got"),
        ({"title": "half \ud83d"}, "argument 'title' of book: half of a surrogate, '\\ud83d'"),
        ({"title": "", "extra": {"a": ["\udc00"]}}, "argument 'extra' of book: half of a surrogate"),
        ({"title": "", "stock": {"\udc00": 1}}, "argument 'stock' of book: half of a surrogate"),
    ],
)
def test_each_mistake_is_told_to_the_model(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ToolError) as error:
        check_arguments(SCHEMA, arguments)
    assert complaint in str(error.value)
    assert len(str(error.value)) < 200
