from __future__ import annotations

import logging
from pathlib import Path

import pytest

from turntree.spec_tree import DialogueState
from turntree.spec_tree.exchange import ExchangeLost, Swapped
from turntree.spec_tree.folder_exchange import FolderExchange
from turntree.spec_tree.turn_batch import TurnBatch


def batch(*numbers: int) -> TurnBatch:
    return TurnBatch.of([DialogueState(exact=number + 1) for number in numbers], [[n] * 8 for n in numbers])


def said(swapped: Swapped) -> list[int]:
    return [int(turn[0]) for one in swapped.batches for turn in one.turns]


def test_members_get_each_others_turns_once(tmp_path: Path) -> None:
    one, other = (FolderExchange(tmp_path / "shared", name) for name in ("r0", "r1"))
    assert said(one.swap(batch(0, 1), 0)) == []
    assert said(other.swap(batch(2), 0)) == [0, 1]
    assert said(one.swap(batch(3), 2)) == [2]
    assert said(other.swap(batch(), 1)) == [3]
    assert said(other.swap(batch(), 1)) == []


def test_turns_that_are_given_twice_arrive_once(tmp_path: Path) -> None:
    one, other = (FolderExchange(tmp_path, name) for name in ("r0", "r1"))
    one.swap(batch(0, 1), 0)
    one.swap(batch(0, 1, 2), 0)
    assert said(other.swap(batch(), 0)) == [0, 1, 2]


def test_a_member_in_its_next_life_finds_its_turns(tmp_path: Path) -> None:
    FolderExchange(tmp_path, "r0").swap(batch(0, 1), 0)
    assert said(FolderExchange(tmp_path, "r0").swap(batch(), 0)) == [0, 1]


def test_a_members_files_stay_within_the_bound_over_all_its_lives(tmp_path: Path) -> None:
    size = len(batch(0).to_bytes())
    for life in range(3):
        member = FolderExchange(tmp_path, "r0", max_bytes=4 * size)
        for number in range(3):
            member.swap(batch(3 * life + number), number)
            assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 4 * size
    assert said(FolderExchange(tmp_path, "r1").swap(batch(), 0)) == [5, 6, 7, 8]


def test_a_damaged_file_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FolderExchange(tmp_path, "r0").swap(batch(0), 0)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    other = FolderExchange(tmp_path, "r1")
    with caplog.at_level(logging.WARNING):
        assert said(other.swap(batch(), 0)) == []
    assert "left out" in caplog.text
    assert said(other.swap(batch(), 0)) == []


def test_a_folder_that_cannot_be_used_loses_the_exchange_and_no_turn(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    member = FolderExchange(taken, "r0")
    with pytest.raises(ExchangeLost, match="taken"):
        member.swap(batch(0), 0)
    taken.unlink()
    member.swap(batch(0), 0)
    assert said(FolderExchange(taken, "r1").swap(batch(), 0)) == [0]


def test_names_that_could_be_taken_for_others_are_refused(tmp_path: Path) -> None:
    for name in ("a-b", "", "a/b"):
        with pytest.raises(ValueError, match="a member's name"):
            FolderExchange(tmp_path, name)
    with pytest.raises(ValueError, match="max_bytes"):
        FolderExchange(tmp_path, "a", max_bytes=0)
