from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from turntree.agents.gateway.turn_text import TurnText, settled
from turntree.agents.loop.renderer import Renderer


@pytest.mark.parametrize(("text", "marks", "shown"), table(__file__, "settled"))
def test_what_is_settled_has_no_mark_and_begins_none(text: str, marks: list[str], shown: str):
    assert settled(text, marks) == shown


@settings(deadline=None, max_examples=60)
@given(text=st.text(max_size=30), stop=st.text(min_size=1, max_size=3), size=st.integers(1, 4))
def test_the_text_is_that_of_the_tokens_up_to_the_stop_string(chatml: Any, text: str, stop: str, size: int):
    renderer = Renderer(chatml)
    tokens = chatml(text.encode("utf-8", "replace").decode(), add_special_tokens=False)["input_ids"]
    result = TurnText(renderer.decode, [stop])
    shown = ""
    for at in range(0, len(tokens), size):
        result.add(tokens[at : at + size])
        now = settled(result.text, [stop])
        assert now.startswith(shown)
        shown = now
    result.end()
    whole = renderer.decode(tokens)
    assert result.text == whole.partition(stop)[0]
    assert result.text.startswith(shown)
    assert result.stopped == (stop in whole)
    if result.stopped:
        kept = len(result.tokens)
        assert stop in renderer.decode(tokens[:kept])
        assert stop not in renderer.decode(tokens[: kept - 1])
