import json

import pytest
from tables import table

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
        *table(__file__, "told"),
        *[("10", [" ".join(map(str, range(30)))], False), ("camera", ["camera " + "word " * 500], False)],
        *[("333", [SEATS], False), ("46.66", [PASTED + " 46.66"], False)],
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
