from __future__ import annotations

from turntree.agents.engines.drafting.step_bound import draft_length


def test_drafts_are_shorter_the_more_requests_run_and_never_longer_than_the_engine_verifies() -> None:
    lengths = [draft_length(rows, 32) for rows in range(1, 400)]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[15], lengths[63], lengths[-1]) == (32, 32, 8, 8)
    assert all(length * rows <= 512 for rows, length in enumerate(lengths, 1) if length > 8)
    assert {draft_length(rows, 4) for rows in (1, 64, 256)} == {4}
