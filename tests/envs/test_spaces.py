import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turntree.envs import Unicode


@given(text=st.text(max_size=8), limit=st.integers(0, 8))
def test_a_text_is_inside_exactly_when_it_is_short_enough(text: str, limit: int) -> None:
    assert (text in Unicode(limit)) == (len(text) <= limit)


def test_nothing_but_text_is_inside_and_limit_and_seed_are_all_there_is_to_a_space() -> None:
    assert not any(other in Unicode(10) for other in (3, None, b"bytes", ["a"]))
    assert "\N{GRINNING FACE}" * 3 in Unicode(3)
    assert "\N{GRINNING FACE}" * 4 not in Unicode(3)
    assert Unicode(3) == Unicode(3, seed=7)
    assert Unicode(3) != Unicode(4)
    assert Unicode(3) != 3
    assert len({Unicode(3), Unicode(3), Unicode(4)}) == 2
    assert repr(Unicode(3)) == "Unicode(3)"
    drawn = [[space.sample() for _ in range(5)] for space in (Unicode(seed=1), Unicode(seed=1), Unicode(seed=2))]
    assert drawn[0] == drawn[1] != drawn[2]
    space = Unicode(50, seed=3)
    samples = [space.sample() for _ in range(20)]
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(samples)))) == samples
    copy = pickle.loads(pickle.dumps(space))
    assert copy == space
    assert copy.sample() == space.sample()


@pytest.mark.parametrize("limit", [0, 1, 5, 1_000_000])
def test_samples_are_inside_and_can_be_encoded(limit: int) -> None:
    space = Unicode(limit, seed=0)
    for _ in range(200):
        sample = space.sample()
        assert sample in space
        assert sample.encode().decode() == sample


@pytest.mark.parametrize("limit", [-1, 2.5, True, "3"])
def test_masks_and_limits_that_are_no_counts_are_refused(limit: object) -> None:
    with pytest.raises(ValueError, match="max_length"):
        Unicode(limit)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="neither mask nor probability"):
        Unicode(3).sample(mask=(1, None))
