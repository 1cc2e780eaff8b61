import numpy as np
import pytest
from tables import table

from turntree.agents.engines.protocol import Sampling, TopLogprobs
from turntree.agents.engines.served.turns import checked_prompt


@pytest.mark.parametrize(("name", "value"), table(__file__, "meaningless"))
def test_a_value_without_a_meaning_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        Sampling(**{name: value})


def test_recorded_top_tokens_are_compared_by_their_values():
    def top(first: int) -> TopLogprobs:
        return TopLogprobs(ids=np.array([[first, 2]], np.int32), logprobs=np.array([[-0.5, -np.inf]], np.float32))

    assert top(1) == top(1)
    assert hash(top(1)) == hash(top(1))
    assert top(1) != top(3)
    assert top(1) != 1


def test_a_prompt_shorter_than_the_context_comes_back_as_plain_numbers() -> None:
    checked = checked_prompt(tuple(np.arange(3)), 4)
    assert checked == [0, 1, 2]
    assert all(type(token) is int for token in checked)
    assert checked_prompt([7] * 100, None) == [7] * 100


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "the prompt is empty"),
        ([1] * 4, "given tokens are 4, max_context is 4: no token is"),
        ([1, -1], "hold token -1, the model knows 0 to 8"),
        ([1, 9], "hold token 9, the model knows 0 to 8"),
    ],
)
def test_a_prompt_that_cannot_be_continued_is_refused(tokens: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_prompt(tokens, 4, 9)
