from typing import Any, Literal

import pytest

from turntree.envs import ToolError
from turntree.envs.arguments import check_arguments
from turntree.envs.schema import function_schema


def book(
    title: str,
    year: int = 0,
    price: float = 0.0,
    new: bool = False,
    tags: list[str] = [],  # noqa: B006
    stock: dict[str, int] = {},  # noqa: B006
    place: tuple[int, str] = (0, ""),
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
        place: Shelf and letter
        kind: Binding
        note: A note
        code: A code
        parts: Parts
        extra: Anything
    """


SCHEMA = function_schema(book)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"year": 1999, "price": 3, "new": True},
        {"price": 2.5, "tags": ["a", "b"], "stock": {"x": 1}},
        {"place": [3, "c"], "kind": "cloth", "note": None},
        {"note": "n", "code": "x1", "parts": [1, 2]},
        {"parts": "all", "extra": {"any": [1, None]}},
    ],
)
def test_arguments_that_fit_pass(arguments: dict[str, Any]) -> None:
    check_arguments(SCHEMA, {"title": "Emma", **arguments})


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "book needs the argument 'title'; it takes: title, year"),
        ({"title": "Emma", "yeer": 1}, 'book has no argument "yeer"; it takes: title, year'),
        ({"title": 5}, "argument 'title' of book must be of type string, got 5"),
        ({"title": None}, "must be of type string, got null"),
        ({"title": ["x" * 10_000]}, "must be of type string, got"),
        ({"title": "Emma", "year": "1999"}, 'must be of type integer, got "1999"'),
        ({"title": "Emma", "year": 2.5}, "must be of type integer, got 2.5"),
        ({"title": "Emma", "year": True}, "must be of type integer, got true"),
        ({"title": "Emma", "price": False}, "must be of type number, got false"),
        ({"title": "Emma", "new": 1}, "must be of type boolean, got 1"),
        ({"title": "Emma", "tags": "a"}, "must be of type array"),
        ({"title": "Emma", "tags": ["a", 1]}, "item 1 of argument 'tags' of book must be of type string"),
        ({"title": "Emma", "stock": {"x": "y"}}, "'x' in argument 'stock' of book must be of type integer"),
        ({"title": "Emma", "place": [1]}, "must have 2 items, got 1"),
        ({"title": "Emma", "place": ["c", 1]}, "item 0 of argument 'place'"),
        ({"title": "Emma", "kind": "silk"}, 'must be one of "paper", "cloth", got "silk"'),
        ({"title": "Emma", "code": 1.5}, "must be of type integer or string"),
        ({"title": "Emma", "parts": ["x"]}, "argument 'parts' of book has the wrong type"),
    ],
)
def test_each_mistake_is_told_to_the_model(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ToolError) as error:
        check_arguments(SCHEMA, arguments)
    assert complaint in str(error.value)
    assert len(str(error.value)) < 200
