"""Many signatures, one law: the schema equals that of ``transformers.utils.get_json_schema``.

Left out is what the reference cannot read: ``name (type):`` in a docstring, choices that are no strings,
choices for two arguments, tuples of one, a continued line
that begins like an argument; and a bare ``list`` or ``tuple``, which it calls an object.
"""

from collections.abc import Callable
from typing import Any, Literal, Optional, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turntree.envs import Context
from turntree.envs.schema import function_schema

utils = pytest.importorskip("transformers.utils", reason="the reference is transformers.utils.get_json_schema")
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
    function = build(source)
    assert function_schema(function) == utils.get_json_schema(function)


@settings(max_examples=20)
@given(source=sources())
def test_a_hidden_context_or_an_instance_changes_nothing_in_the_schema(source: str) -> None:
    for first in ("self", "context: Context"):
        hidden = source.replace("def f(", f"def f({first}, ", 1).replace(", )", ")", 1)
        assert function_schema(build(hidden)) == function_schema(build(source))
