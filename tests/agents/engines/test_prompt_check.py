from __future__ import annotations

import numpy as np
import pytest

from turntree.agents.engines.prompt_check import checked_prompt


def test_a_prompt_that_leaves_room_for_a_token_comes_back_as_plain_numbers() -> None:
    checked = checked_prompt(tuple(np.arange(3)), 4)
    assert checked == [0, 1, 2]
    assert all(type(token) is int for token in checked)
    assert checked_prompt([7] * 100, None) == [7] * 100


@pytest.mark.parametrize(
    ("tokens", "message"),
    [([], "the prompt is empty"), ([1] * 4, "given tokens are 4, max_context is 4: no room")],
)
def test_a_prompt_that_cannot_go_on_is_refused(tokens: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_prompt(tokens, 4)
