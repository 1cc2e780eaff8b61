from __future__ import annotations

import pytest

from turntree.spec_tree.level import Level, level_codes, worst_level


def test_codes_leave_zero_for_tokens_that_the_policy_did_not_sample() -> None:
    assert level_codes("ABCD").tolist() == [1, 2, 3, 4]
    assert level_codes("").shape == (0,)
    assert level_codes("A").dtype == "int8"


def test_a_letter_that_is_no_level_is_refused() -> None:
    with pytest.raises(ValueError, match="one of ABCD"):
        level_codes("AXB")


def test_the_worst_level_is_the_weakest_claim() -> None:
    assert worst_level("AABA") == Level.B
    assert worst_level("DAC") == Level.D
    assert worst_level("") == Level.A
