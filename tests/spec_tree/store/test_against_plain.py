"""The store and a plain implementation receive the same random and adversarial calls.

Both must hold and count the same. Their drafts may differ in order and choice, so drafts of the store are checked to be
trees of token pairs that occur one after another in turns that the plain implementation holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from forest_checks import Node, best_path, broken, malformed, paths, rows_of, turns_in, unfounded
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from plain_forest import PREFIX_ONLY, PlainForest

from turntree.spec_tree import DialogueState, DraftBatch, ForestConfig, ForestStats, SpecForest

MOST = 2**31 - 1
END = 3
STATES = [
    DialogueState.from_tokens([1]),
    DialogueState.from_tokens([2], task="t", env="e"),
    DialogueState.from_tokens([3], task="t", env="e"),
    DialogueState.from_tokens([4], task="t", tools="look", env="e"),
    DialogueState.from_tokens([5], task="u", env="e"),
]

alphabets = st.sampled_from([(0, 1), (0, 1, 2, END), (5, 6, 7, 8, END), (0, 2**16, 2**24, MOST - 1, MOST)])


def turns_of(alphabet: tuple[int, ...]) -> st.SearchStrategy[list[int]]:
    token = st.sampled_from(alphabet)
    return st.one_of(
        st.lists(token, max_size=10),
        st.lists(token, min_size=1, max_size=1),
        st.builds(
            lambda unit, times, slip: (unit * times)[: 60 - len(slip)] + slip,
            st.lists(token, min_size=1, max_size=4),
            st.integers(2, 40),
            st.lists(token, max_size=2),
        ),
    )


@dataclass
class Going:
    real: int
    plain: int
    state: DialogueState
    asked: list[int]
    said: list[int] = field(default_factory=list)
    drafted: list[Node] = field(default_factory=list)  #: drafted since the turn was last extended


class Both:
    def __init__(self, quota: int, make: Callable[[ForestConfig], SpecForest] = SpecForest) -> None:
        ends = frozenset({END})
        self.real = make(ForestConfig(end_tokens=ends, rollouts_per_state=quota, max_tokens=32768))
        self.plain = PlainForest(quota=quota, ends=ends)
        self.going: list[Going] = []
        self.drafted = self.accepted = 0

    def insert(self, state: DialogueState, tokens: list[int]) -> None:
        self.real.insert(state, tokens)
        self.plain.insert(state, tokens)

    def begin(self, state: DialogueState, context: list[int] | None) -> None:
        (real,) = self.real.begin([state], None if context is None else [context])
        (plain,) = self.plain.begin([state])
        self.going.append(Going(real, plain, state, context or []))

    def commit(self, tokens: list[list[int]]) -> None:
        chosen = self.going[: len(tokens)]
        self.real.commit([turn.real for turn in chosen], tokens[: len(chosen)])
        self.plain.commit([turn.plain for turn in chosen], tokens[: len(chosen)])
        for turn, more in zip(chosen, tokens, strict=False):
            turn.said += more
            if more:
                self.accepted += best_path(turn.drafted, more)
                turn.drafted = []

    def end(self, index: int, keep: bool) -> None:
        if self.going:
            turn = self.going.pop(index % len(self.going))
            self.real.end([turn.real], keep=keep)
            self.plain.end([turn.plain], keep=keep)

    def draft(self, *, room: int, total_nodes: int | None, **limits: Any) -> None:
        handles, rooms = [turn.real for turn in self.going], [room] * len(self.going)
        drafts = rows_of(self.real.draft(handles, max_depths=rooms, total_nodes=total_nodes, **limits))
        assert total_nodes is None or sum(map(len, drafts)) <= total_nodes
        floor = limits.pop("min_probability")
        self.drafted += sum(map(len, drafts))
        for turn, nodes in zip(self.going, drafts, strict=True):
            last = turn.said[-1] if turn.said else -1
            assert not malformed(nodes, last=last, room=room, floor=floor, ends={END}, **limits)
            near = [other for other in STATES if other.env == turn.state.env]
            assert not unfounded(nodes, last, [said for other in near for said in self.plain.turns(other)], turn.asked)
            turn.drafted = nodes

    def agree(self) -> None:
        for state in STATES:
            assert turns_in(self.real.tree(state)) == self.plain.turns(state)
            assert self.real.finished([state]) == [len(self.plain.kept[state.exact])]
        stats, expected = self.real.stats(), self.plain.held()
        assert {name: getattr(stats, name) for name in expected} == expected
        assert (stats.drafted, stats.accepted) == (self.drafted, self.accepted)
        assert not broken(self.real)


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data(), alphabet=alphabets, quota=st.sampled_from([1, 2, 32]))
def test_they_hold_the_same_turns_and_draft_what_was_said(data: st.DataObject, alphabet: tuple, quota: int) -> None:
    both = Both(quota)
    state, said = st.sampled_from(STATES), turns_of(alphabet)
    asked = st.one_of(st.none(), turns_of((*alphabet, 77, 78)))
    for kind in data.draw(st.lists(st.sampled_from("iibccddek"), min_size=10, max_size=40)):
        if kind == "i":
            both.insert(data.draw(state), data.draw(said))
        elif kind == "b":
            both.begin(data.draw(state), data.draw(asked))
        elif kind == "c":
            both.commit(data.draw(st.lists(said, max_size=3)))
        elif kind == "d":
            both.draft(
                max_nodes=data.draw(st.sampled_from([0, 1, 4, 16, 128])),
                room=data.draw(st.sampled_from([0, 1, 3, 64])),
                min_probability=data.draw(st.sampled_from([0.0, 0.05, 0.5])),
                chain=data.draw(st.booleans()),
                total_nodes=data.draw(st.sampled_from([None, None, 0, 5])),
            )
        else:
            both.end(data.draw(st.integers(0, 5)), keep=kind == "e")
        both.agree()
    while both.going:
        both.end(0, keep=False)
    both.agree()


class Loses(SpecForest):
    def insert(self, state: DialogueState, tokens: Sequence[int]) -> None:
        if len(tokens) != 2:
            super().insert(state, tokens)


class Keeps(SpecForest):
    def end(self, handles: Sequence[int], *, keep: bool = True) -> None:
        super().end(handles)


class Changes(SpecForest):
    def draft(self, *args: Any, **limits: Any) -> DraftBatch:
        batch = super().draft(*args, **limits)
        batch.tokens[:1] = 77
        return batch


class Miscounts(SpecForest):
    def stats(self) -> ForestStats:
        stats = super().stats()
        return replace(stats, **{self.count: getattr(stats, self.count) + 1})

    count = "tokens"


def a_script(both: Both) -> None:
    for turn in ([5, 6, 7], [5, 8], [5, 6, 7], [6, 6, 6]):
        both.insert(STATES[1], turn)
        both.agree()
    both.begin(STATES[1], [5, 5])
    both.begin(STATES[2], None)
    for _ in range(2):
        both.draft(max_nodes=16, room=4, min_probability=0.0, chain=False, total_nodes=None)
        both.commit([[5], [6, 6]])
    both.agree()
    both.end(0, keep=False)
    both.end(0, keep=True)
    both.agree()


@pytest.mark.parametrize(
    "faulty",
    [
        Loses,
        Keeps,
        Changes,
        lambda config: SpecForest(replace(config, rollouts_per_state=3)),
        *(
            type("", (Miscounts,), {"count": name})
            for name in ("rollouts", "committed", "accepted", "evicted_rollouts")
        ),
    ],
)
def test_a_store_with_a_fault_does_not_agree(faulty: Callable[[ForestConfig], SpecForest]) -> None:
    """Control of the test above."""
    a_script(Both(2))
    with pytest.raises(AssertionError):
        a_script(Both(2, faulty))


@settings(max_examples=150)
@given(data=st.data(), alphabet=alphabets)
def test_what_follows_the_whole_prefix_is_drafted_by_both(data: st.DataObject, alphabet: tuple[int, ...]) -> None:
    tokens = st.lists(st.sampled_from(alphabet), min_size=1, max_size=6)
    turns = data.draw(st.lists(tokens, min_size=1, max_size=5))
    spoken = data.draw(st.sampled_from(turns))[: data.draw(st.integers(0, 6))]
    assume(not spoken or sum(turn.count(spoken[-1]) for turn in [*turns, spoken]) <= 16)
    real = SpecForest(ForestConfig(end_tokens=frozenset({END})))
    plain = PlainForest(ends=frozenset({END}), levels=PREFIX_ONLY)
    drafts, aborted = [], data.draw(tokens)
    for forest in (real, plain):
        handles = forest.begin([STATES[1]])
        forest.commit(handles, [aborted])
        forest.end(handles, keep=False)
        for turn in turns:
            forest.insert(STATES[1], turn)
        handles = forest.begin([STATES[1]])
        forest.commit(handles, [spoken])
        drafts.append(rows_of(forest.draft(handles, max_nodes=128, max_depths=[64]))[0])
    drafted, expected = (set(paths(nodes)) for nodes in drafts)
    assert expected <= drafted
    ahead = [turn[len(spoken) :] for turn in turns if turn[: len(spoken)] == spoken and END not in spoken[-1:]]
    assert {way[0] for way in expected} == {rest[0] for rest in ahead if rest}
