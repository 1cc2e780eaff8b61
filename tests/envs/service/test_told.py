"""What counts as told to a customer."""

from __future__ import annotations

import json

import pytest

from turntree.envs import Message, Role
from turntree.envs.service.told import refused, told

PASTED = " ".join(f"Item {number}: {number}.50 dollars." for number in range(100, 160))


SEATS = json.dumps({"price": 46.66, "seats": [*range(11, 20), *range(300, 340)]})


def dialogue(*said: str) -> list[Message]:
    turns = [(Role.USER, "I paid 60 for #W1"), (Role.ASSISTANT, "looking"), (Role.TOOL, SEATS)]
    turns += [turn for text in said for turn in ((Role.ASSISTANT, text), (Role.USER, "?"))]
    return [Message(role=role, content=content) for role, content in turns]


@pytest.mark.parametrize(
    ("wanted", "said", "expected"),
    [
        ("46.66", ["It is $46.66."], True),
        ("180.1", ["You get back $180.10, by card."], True),
        ("1093.34", ["That makes $1,093.34 in all"], True),
        ("10", ["There are 10."], True),
        ("10", ["It comes on 2010-10-10, order #10, 10a, 110 and 10.5"], False),
        ("10", ["I do not know."], False),
        ("10", [" ".join(map(str, range(30)))], False),
        ("10", ["1 2 3 4 5", "6 7 8 9", "10 20 30"], False),
        ("15", ["The seats are 11, 12, 13, 14, 15, 16, 17, 18 and 19."], True),
        ("333", ["It is seat 333."], True),
        ("333", [SEATS], False),
        ("46.66", [PASTED + " 46.66"], False),
        ("camera", ["It is a Camera."], True),
        ("camera", ["It is cameraman's."], False),
        ("20 hours", ["It lasts 20  hours."], True),
        ("camera", ["camera " + "word " * 500], False),
    ],
)
def test_a_value_is_told_where_it_is_answered(wanted: str, said: list[str], expected: bool) -> None:
    assert told([wanted], dialogue(*said)) is expected


def test_several_values_may_be_told_in_several_messages() -> None:
    assert told(["10", "camera"], dialogue("There are 10.", "It is a camera."))
    assert not told(["10", "camera"], dialogue("There are 10."))


@pytest.mark.parametrize("said", ["I cannot cancel it.", "Sorry, no.", "That isn\u2019t possible", "Not eligible."])
def test_a_refusal_is_said(said: str) -> None:
    assert refused(dialogue(said))
    assert not refused(dialogue("All is done, bye."))
