from __future__ import annotations

import pytest

import turntree.agents


def test_every_public_name_is_there_and_no_other() -> None:
    for name in turntree.agents.__all__:
        assert getattr(turntree.agents, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = turntree.agents.no_such_name
