import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turntree.spec_tree import DialogueState
from turntree.spec_tree.sharing.turn_batch import TurnBatch

states = st.builds(
    DialogueState,
    exact=st.integers(0, 2**64 - 1),
    task=st.text(max_size=3),
    tools=st.text(max_size=3),
    env=st.sampled_from(["", "sums"]),
)
turns = st.lists(st.integers(0, 2**31 - 1), max_size=5)


def same(batch: TurnBatch, said: list[tuple[DialogueState, list[int]]]) -> bool:
    return batch.states == [state for state, _ in said] and [turn.tolist() for turn in batch.turns] == [
        turn for _, turn in said
    ]


@given(st.lists(st.tuples(states, turns), max_size=6))
def test_a_batch_holds_what_it_was_made_of(said: list[tuple[DialogueState, list[int]]]) -> None:
    batch = TurnBatch.of([state for state, _ in said], [turn for _, turn in said])
    assert same(batch, said)
    assert len(batch) == len(said)


@given(st.lists(st.tuples(states, turns, st.booleans()), max_size=6))
def test_a_selection_has_the_turns_that_were_kept_and_their_texts_alone(said: list) -> None:
    batch = TurnBatch.of([state for state, _, _ in said], [turn for _, turn, _ in said])
    chosen = batch.select(np.array([kept for _, _, kept in said], bool))
    assert same(chosen, [(state, turn) for state, turn, kept in said if kept])
    assert set(chosen.texts) == {t for s, _, kept in said if kept for t in (s.task, s.tools, s.env)} or chosen is batch


def test_the_newest_turns_fit_into_the_bound_and_small_token_ids_take_two_bytes_each() -> None:
    batch = TurnBatch.of([DialogueState(exact=number) for number in range(4)], [[1] * 5, [2] * 5, [3] * 5, [4] * 5])
    assert [turn[0] for turn in batch.newest(12).turns] == [3, 4]
    assert len(batch.newest(4)) == 0
    assert len(batch.newest(20)) == 4
    states = [DialogueState(exact=number, task="a long name of a task " * 9, env="sums") for number in range(100)]
    narrow = TurnBatch.of(states, [[7] * 50] * 100)
    assert TurnBatch.of(states, [[70_000] * 50] * 100).nbytes - narrow.nbytes == 2 * 50 * 100
    assert len(narrow.texts) == 3


def test_turns_of_one_task_and_environment_are_one_and_those_without_a_task_go_by_their_state() -> None:
    named = [("a", "e"), ("b", "e"), ("a", "e"), ("a", "f"), ("", "e"), ("", "e"), ("", "e")]
    exact = [1, 2, 3, 4, 5, 6, 5]
    said = [
        DialogueState(exact=number, task=task, tools=str(number), env=env)
        for number, (task, env) in zip(exact, named, strict=True)
    ]
    tasks, indices = TurnBatch.of(said, [[1]] * len(said)).distinct()
    assert [(tasks[index].task, tasks[index].env) for index in indices] == named
    assert len(tasks) == 5
    assert [tasks[index].exact for index in indices[4:]] == [5, 6, 5]
    assert TurnBatch.of([], []).distinct()[0] == []


def test_a_turn_without_a_state_is_refused() -> None:
    with pytest.raises(ValueError, match="one entry per state"):
        TurnBatch.of([], [[1]])
