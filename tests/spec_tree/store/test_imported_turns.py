import errno
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turntree.spec_tree import DamagedForest, DialogueState, ForestConfig, SpecForest
from turntree.spec_tree.kernels.weights import first_weights
from turntree.spec_tree.store import imported_turns

STATES = [DialogueState.from_tokens([7, number], task=str(number), env="e") for number in range(12)]
VOCABULARY = 40


def way(number: int, slip: random.Random | None = None) -> list[int]:
    chance = random.Random(number)
    said = [chance.randrange(VOCABULARY) for _ in range(24)]
    return [token if slip is None or slip.random() > 0.2 else slip.randrange(VOCABULARY) for token in said]


def saved(path: Path, turns: dict[int, list[int]], **settings: str) -> Path:
    forest = SpecForest(ForestConfig(**settings))
    for number, said in turns.items():
        forest.insert_all([STATES[number]] * 4, [said] * 4)
    forest.save(path)
    return path


def played(forest: SpecForest, rounds: int = 3, *, siblings: int = 4) -> float:
    """Tokens per forward pass of a policy that mostly follows its way."""
    slip, steps, tokens = random.Random(1), 0, 0
    for _ in range(rounds):
        for number, state in enumerate(STATES):
            left = [way(number, slip) for _ in range(siblings)]
            handles = forest.begin([state] * siblings)
            while any(left):
                at = [row for row in range(siblings) if left[row]]
                room = [len(left[row]) - 1 for row in at]
                batch = forest.draft([handles[row] for row in at], max_nodes=8, max_depths=room, chain=True)
                for index, row in enumerate(at):
                    drafted, kept = batch.tokens[batch.offsets[index] : batch.offsets[index + 1]].tolist(), 0
                    while kept < len(drafted) and drafted[kept] == left[row][kept]:
                        kept += 1
                    forest.commit([handles[row]], [left[row][: kept + 1]])
                    tokens, steps, left[row] = tokens + kept + 1, steps + 1, left[row][kept + 1 :]
            forest.end(handles)
    return tokens / steps


def test_a_store_drafts_from_the_turns_of_another_run_from_its_first_token_on(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.npz", {number: way(number) for number in range(12)})
    with_imported, without = (SpecForest(ForestConfig(import_turns=given)) for given in (str(file), ""))
    assert with_imported.imported_counters() == {"imported_turns": 48, "imported_evicted": 0}
    assert without.imported_counters() == {}
    assert played(with_imported, 1, siblings=1) > 1.5 * played(without, 1, siblings=1)
    assert with_imported.imported_counters()["imported_evicted"] == 0


def test_a_past_that_is_wrong_is_forgotten_and_one_that_is_right_is_kept(tmp_path, monkeypatch) -> None:
    file = saved(tmp_path / "a.npz", {number: way(number + 100) for number in range(12)})
    forest, empty = SpecForest(ForestConfig(import_turns=str(file))), SpecForest()
    assert played(forest) > 0.95 * played(empty)
    assert forest.imported_counters()["imported_evicted"] == 48
    assert sorted(set(forest.finished(STATES))) == [12], "what was sampled here is all there"
    store = forest.rollouts.store
    turns = [turn for state in forest.rollouts.by_state.values() for turn in state.turns]
    turn = max(turns, key=lambda turn: int(store.log.votes[turn.slot, 0]))
    assert store.log.votes[turn.slot, 0], "the control: it has votes"
    store.drop(turn)
    assert not store.log.votes[turn.slot].any(), "a turn that comes next begins without votes"
    monkeypatch.setattr(imported_turns, "_MIN_RATIO", 0.0)
    blind = SpecForest(ForestConfig(import_turns=str(file)))
    played(blind)
    assert blind.imported_counters()["imported_evicted"] == 0, "the control: without the check all stay"


def test_what_was_learnt_of_a_wrong_past_is_forgotten_with_it(tmp_path: Path) -> None:
    wrong = [token + index % 2 for index, token in enumerate(way(0))]  # each token is found, and none that follows
    forest = SpecForest(ForestConfig(import_turns=str(saved(tmp_path / "a.npz", {0: wrong}))))
    forest.insert_all([STATES[0]] * 2, [way(0)] * 2)
    handles, before = forest.begin([STATES[0]] * 4), first_weights()
    for token in way(0) * 20:
        forest.draft(handles, max_nodes=4, max_depths=[4] * 4)
        forest.commit(handles, [[token]] * 4)
        if forest.imported_counters()["imported_evicted"] > 2:  # of four
            break
        learnt = forest.weights["hashed"].copy()
    assert not np.array_equal(learnt, before["hashed"]), "the control: it had learnt"
    assert all(np.array_equal(forest.weights[name], before[name]) for name in before.dtype.names or ())


def test_of_a_past_that_is_right_in_part_the_wrong_turns_leave(tmp_path: Path) -> None:
    turns = {number: way(number if number < 8 else number + 100) for number in range(12)}
    forest = SpecForest(ForestConfig(import_turns=str(saved(tmp_path / "a.npz", turns))))
    played(forest, 6)
    left = {int(turn.keys[0]) for turn in forest.rollouts.imported.turns}
    assert left == {state.exact for state in STATES[:8]}


def test_own_turns_take_the_places_of_a_state_and_the_past_has_half_of_the_log_at_most(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.npz", {0: way(0)})
    forest = SpecForest(ForestConfig(import_turns=str(file), rollouts_per_state=4))
    forest.insert_all([STATES[0]] * 3, [[1, 2, 3]] * 3)
    assert forest.finished(STATES[:1]) == [4]
    assert {child.token for child in forest.tree(STATES[0]).children} == {1, way(0)[0]}
    forest.insert(STATES[0], [1, 2, 3])
    assert {child.token for child in forest.tree(STATES[0]).children} == {1}
    file = saved(tmp_path / "a.npz", {number: way(number) for number in range(12)})
    forest = SpecForest(ForestConfig(import_turns=str(file), max_tokens=1024))
    assert forest.imported_counters()["imported_turns"] == 512 // 32
    assert forest.finished(STATES[-1:]) == [4], "the newest stay"


def test_a_folder_is_read_as_a_run_writes_its_checkpoints(tmp_path: Path) -> None:
    for step, number in ((9, 0), (10, 1)):
        for replica in range(2):
            folder = tmp_path / f"run/checkpoints/global_step_{step}/turntree/replica_{replica}"
            folder.mkdir(parents=True)
            saved(folder / "forest.npz", {number: way(number), 2 + replica: way(2 + replica)})
            (folder / "ledger.npz").write_bytes(b"of something else")
    forest = SpecForest(ForestConfig(import_turns=str(tmp_path / "run")))
    assert forest.finished(STATES[:4]) == [0, 4, 4, 4], "the last step; what both replicas have, once"
    half = folder.with_name(".replica_0.ab12.partial")
    for left in (half, tmp_path / "run/checkpoints/global_step_11/turntree/.replica_0.cd34.partial"):
        left.mkdir(parents=True)
        saved(left / "forest.npz", {0: way(0)})
    forest = SpecForest(ForestConfig(import_turns=str(tmp_path / "run")))
    assert forest.finished(STATES[:4]) == [0, 4, 4, 4], "what was half written when the run was killed is left out"
    saved(tmp_path / "a.npz", {0: way(0)})
    (tmp_path / "plain").mkdir()
    saved(tmp_path / "plain/any.npz", {5: way(5)})
    assert SpecForest(ForestConfig(import_turns=str(tmp_path / "plain"))).finished(STATES[5:6]) == [4]


def test_no_older_store_stands_in_for_one_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        folder = tmp_path / f"global_step_{step}/turntree/replica_0"
        folder.mkdir(parents=True)
        saved(folder / "forest.npz", {step: way(step)})
    scandir = os.scandir

    def closed(path: Any) -> Any:  # a mode would not stop the superuser
        if "global_step_2" in os.fspath(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(PermissionError, match="global_step_2"):
        SpecForest(ForestConfig(import_turns=str(tmp_path)))


def test_what_is_no_store_of_this_policy_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.npz", {0: way(0)}, tokenizer="theirs")
    with pytest.raises(DamagedForest, match="expected turns of the tokenizer ours, got turns of theirs"):
        SpecForest(ForestConfig(import_turns=str(file), tokenizer="ours"))
    with pytest.raises(DamagedForest, match="does not belong to this policy"):
        SpecForest(ForestConfig(import_turns=str(file), vocabulary=5))
    assert SpecForest(ForestConfig(import_turns=str(file), tokenizer="theirs")).finished(STATES[:1]) == [4]
    (tmp_path / "none").mkdir()
    with pytest.raises(DamagedForest, match="no draft store in the folder"):
        SpecForest(ForestConfig(import_turns=str(tmp_path / "none")))
    with pytest.raises(FileNotFoundError):
        SpecForest(ForestConfig(import_turns=str(tmp_path / "gone.npz")))


def test_a_saved_store_has_what_is_left_of_its_past_and_does_not_read_it_again(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.npz", {0: way(0)})
    forest = SpecForest(ForestConfig(import_turns=str(file)))
    forest.save(tmp_path / "b.npz")
    file.unlink()
    for loaded in (SpecForest.load(tmp_path / "b.npz"), SpecForest.load(tmp_path / "b.npz", forest.config)):
        assert (loaded.config.import_turns, loaded.finished(STATES[:1])) == ("", [4])
    forest.restore(tmp_path / "b.npz")
    assert forest.finished(STATES[:1]) == [4]
