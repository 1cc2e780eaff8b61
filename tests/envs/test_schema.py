from typing import Any

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


ARGS = "Do.\n\nArgs:\n    a: "


@pytest.mark.parametrize(
    ("parameter", "doc", "complaint"),
    [
        ("a: int", None, "needs a docstring"),
        ("a", ARGS + "A number", "'a' of tool 'f' needs a type hint"),
        ("a: int", "Do.", "'a' of tool 'f' needs a line under 'Args:'"),
        ("*a: int", ARGS + "Numbers", "only take named parameters"),
        ("a: complex", ARGS + "A number", "JSON cannot express"),
        ("a: str", ARGS + "A letter (choices: x, y)", "write JSON"),
    ],
)
def test_what_is_missing_is_named(parameter: str, doc: str | None, complaint: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def f({parameter}) -> int:\n    {doc!r}", scope)
    with pytest.raises(ToolDefinitionError, match=complaint):
        function_schema(scope["f"])
