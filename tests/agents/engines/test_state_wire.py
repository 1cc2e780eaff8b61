import json

import pytest

from turntree.agents.engines.state_wire import from_wire, to_wire
from turntree.spec_tree import DialogueState


def test_a_state_survives_json_with_all_64_bits_of_its_hash():
    state = DialogueState(exact=(1 << 64) - 3, task="t/1", tools="search(é)", env="turntree/GSM8K-v0")
    assert from_wire(json.loads(json.dumps(to_wire(state)))) == state


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"exact": "xyz", "task": "", "tools": "", "env": ""},
        {"exact": "1" + "0" * 16, "task": "", "tools": "", "env": ""},
        {"exact": "f", "task": 3, "tools": "", "env": ""},
        {"exact": 3, "task": "", "tools": "", "env": ""},
        ["exact"],
    ],
)
def test_what_is_no_state_is_refused_with_what_was_expected(values):
    with pytest.raises(ValueError, match="turntree_state"):
        from_wire(values)
