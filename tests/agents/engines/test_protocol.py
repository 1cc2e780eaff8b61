from __future__ import annotations

import numpy as np
import pytest
from tables import table

from turntree.agents.engines.protocol import Sampling, TopLogprobs


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
