from typing import Any, Literal

import pytest

from turntree.envs import ToolDefinitionError
from turntree.envs.schema import function_schema, parse_docstring


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


def everything(
    flag: bool,
    ratio: float,
    names: list[str],
    table: dict[str, int],
    pair: tuple[int, str],
    kind: Literal["a", "b"],
    mode: Literal["a", 1],
    maybe: str | None,
    either: int | str,
    nested: list[int] | str | None,
    anything: Any,
    colour: str,
    bare: dict,  # type: ignore[type-arg]
) -> None:
    """Take one of each.

    Args:
        flag: A flag
        ratio: A ratio
        names: Names
        table: A table
        pair: A pair
        kind: A kind
        mode: A mode
        maybe: Perhaps a text
        either: This or that
        nested: Numbers or a text
        anything: Anything
        colour: A colour (choices: ["red", "green"])
        bare: An object
    """


class Library:
    def find(self, title: str) -> str:
        """Find a book.

        Args:
            title: Its title
        """
        return title


def no_parameters():
    """Say the time."""


@pytest.mark.parametrize("function", [search, everything, Library.find, no_parameters])
def test_the_schema_equals_that_of_transformers(function: Any) -> None:
    utils = pytest.importorskip("transformers.utils", reason="the reference is transformers.utils.get_json_schema")
    assert function_schema(function) == utils.get_json_schema(function)


def test_the_schema_of_a_function_in_full() -> None:
    assert function_schema(search) == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the library.\n\nLonger words first.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "What to look for, in a few words"},
                    "limit": {"type": "integer", "description": "Results at most"},
                },
                "required": ["query"],
            },
            "return": {"type": "array", "items": {"type": "string"}, "description": "Titles, best first"},
        },
    }


def test_another_name_can_be_given() -> None:
    assert function_schema(search, name="look_up")["function"]["name"] == "look_up"


def test_a_continuation_line_with_a_colon_stays_with_its_argument() -> None:
    doc = parse_docstring("Do.\n\nArgs:\n    a (int): one,\n        note: not an argument\n    b: two")
    assert doc.arguments == {"a": "one, note: not an argument", "b": "two"}


def without_docstring(a: int) -> int:
    return a


def without_hint(a) -> int:  # type: ignore[no-untyped-def]
    """Do.

    Args:
        a: A number
    """
    return int(a)


def without_line(a: int) -> int:
    """Do."""
    return a


def with_varargs(*a: int) -> int:
    """Do.

    Args:
        a: Numbers
    """
    return sum(a)


def with_odd_type(a: complex) -> None:
    """Do.

    Args:
        a: A number
    """


def with_bad_choices(a: str) -> None:
    """Do.

    Args:
        a: A letter (choices: x, y)
    """


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (without_docstring, "needs a docstring"),
        (without_hint, "'a' of tool 'without_hint' needs a type hint"),
        (without_line, "'a' of tool 'without_line' needs a line under 'Args:'"),
        (with_varargs, "only take named parameters"),
        (with_odd_type, "JSON cannot express"),
        (with_bad_choices, "write JSON"),
    ],
)
def test_what_is_missing_is_named(function: Any, complaint: str) -> None:
    with pytest.raises(ToolDefinitionError, match=complaint):
        function_schema(function)
