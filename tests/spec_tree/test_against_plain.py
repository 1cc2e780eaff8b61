"""The store and the plain one told the same, call by call, on random and on adversarial streams.

They hold the same turns. Their drafts may differ: in how likely a token is
thought to be, hence in the order and choice of nodes; in how far back a place is
looked for (the store walks to the newest places, the plain one counts all); and
in turns that were alike until just now, which only the store asks. Both drafts
are trees, of pairs of tokens that were said one after another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forest_checks import Node, Said, best_path, broken, malformed, rows_of, turns_in, unfounded
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from plain_forest import PlainConfig, PlainForest

from turntree.spec_tree import DialogueState, ForestConfig, SpecForest

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


def turns_of(alphabet: tuple[int, ...], least: int = 0) -> st.SearchStrategy[list[int]]:
    """Turns of random tokens, of one token, and of a few tokens over and over."""
    token = st.sampled_from(alphabet)
    return st.one_of(
        st.lists(token, min_size=least, max_size=10),
        st.lists(token, min_size=1, max_size=1),
        st.builds(
            lambda unit, times, slip: (unit * times)[: 60 - len(slip)] + slip,
            st.lists(token, min_size=1, max_size=4),
            st.integers(2, 40),
            st.lists(token, max_size=2),
        ),
    )


@dataclass
class Both:
    """A store and a plain one that are told the same."""

    quota: int
    real: SpecForest = field(init=False)
    plain: PlainForest = field(init=False)
    going: list[tuple[int, int, DialogueState, list[int], list[int]]] = field(default_factory=list)
    """Handles in both, state, what was said, what was asked."""

    def __post_init__(self) -> None:
        ends = frozenset({END})
        self.real = SpecForest(ForestConfig(end_tokens=ends, rollouts_per_state=self.quota, max_tokens=32768))
        self.plain = PlainForest(PlainConfig(end_tokens=ends, rollouts_per_state=self.quota))

    def insert(self, state: DialogueState, tokens: list[int]) -> None:
        self.real.insert(state, tokens)
        self.plain.insert(state, tokens)

    def begin(self, state: DialogueState, context: list[int] | None) -> None:
        (real,) = self.real.begin([state], None if context is None else [context])
        (plain,) = self.plain.begin([state])
        self.going.append((real, plain, state, [], context or []))

    def commit(self, tokens: list[list[int]]) -> None:
        """Each of the oldest live turns goes on."""
        chosen = self.going[: len(tokens)]
        self.real.commit([real for real, *_ in chosen], tokens[: len(chosen)])
        self.plain.commit([plain for _, plain, *_ in chosen], tokens[: len(chosen)])
        for (*_, said, _), more in zip(chosen, tokens, strict=False):
            said += more

    def end(self, index: int, keep: bool) -> None:
        if self.going:
            real, plain, *_ = self.going.pop(index % len(self.going))
            self.real.end([real], keep=keep)
            self.plain.end([plain], keep=keep)

    def draft(self, **limits: Any) -> None:
        """Draft for all, and look at what is drafted."""
        room = [limits.pop("room")] * len(self.going)
        options = {"room": room, **limits}
        drafts = rows_of(self.real.draft([real for real, *_ in self.going], **options))
        plains = rows_of(self.plain.draft([plain for _, plain, *_ in self.going], **options))
        form = {
            "max_nodes": limits["max_nodes"],
            "chain": limits["chain"],
            "floor": limits["min_probability"],
            "ends": {END},
        }
        if limits["total_nodes"] is not None:
            assert sum(map(len, drafts)) <= limits["total_nodes"]
        for (*_, state, said, asked), nodes, oracles, depth in zip(self.going, drafts, plains, room, strict=True):
            last = said[-1] if said else -1
            for drafted in (nodes, oracles):
                assert not malformed(drafted, last=last, room=depth, **form)
            everyone = [turn for other in STATES if other.env == state.env for turn in turns_in(self.tree(other))]
            assert not unfounded(nodes, last, everyone, asked)
            assert not unfounded(oracles, last, everyone)

    def tree(self, state: DialogueState) -> Any:
        return self.plain.tree(state)

    def agree(self) -> None:
        """They hold the same."""
        for state in STATES:
            assert self.real.tree(state).to_dict() == self.plain.tree(state).to_dict()
        real, plain = self.real.stats(), self.plain.stats()
        for name in ("states", "rollouts", "live", "tokens", "committed", "evicted_rollouts", "evicted_states"):
            assert getattr(real, name) == getattr(plain, name), name
        assert real.accepted <= real.drafted
        assert not broken(self.real)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data(), alphabet=alphabets, quota=st.sampled_from([1, 2, 32]))
def test_they_hold_the_same_turns_and_draft_what_was_said(
    data: st.DataObject, alphabet: tuple[int, ...], quota: int
) -> None:
    both = Both(quota)
    state, said = st.sampled_from(STATES), turns_of(alphabet)
    asked = st.one_of(st.none(), turns_of((*alphabet, 77, 78)))
    for kind in data.draw(st.lists(st.sampled_from("ibccddek"), min_size=1, max_size=25)):
        if kind == "i":
            both.insert(data.draw(state), data.draw(turns_of(alphabet, least=1)))
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


@settings(max_examples=80, deadline=None)
@given(data=st.data(), alphabet=alphabets)
def test_a_turn_that_is_said_again_is_drafted_whole(data: st.DataObject, alphabet: tuple[int, ...]) -> None:
    """So short a one that what its tokens were followed by elsewhere does not fill the draft before its end."""
    tokens = st.lists(st.sampled_from(alphabet), min_size=1, max_size=7)
    turns = data.draw(st.lists(tokens, min_size=1, max_size=4))
    forest = SpecForest(ForestConfig(end_tokens=frozenset({END})))
    for turn in turns:
        forest.insert(STATES[1], turn)
    for turn in turns:
        handles = forest.begin([STATES[1]])
        (nodes,) = rows_of(forest.draft(handles, max_nodes=128, room=[64]))
        spoken = turn[: turn.index(END) + 1] if END in turn else turn
        assert best_path(nodes, spoken) == len(spoken)
        forest.end(handles, keep=False)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), alphabet=alphabets)
def test_the_one_turn_of_a_state_is_followed_as_a_chain(data: st.DataObject, alphabet: tuple[int, ...]) -> None:
    turn = data.draw(st.lists(st.sampled_from(alphabet), min_size=1, max_size=100))
    turn = turn[: turn.index(END) + 1] if END in turn else turn
    forest = SpecForest(ForestConfig(end_tokens=frozenset({END})))
    forest.insert(STATES[0], turn)
    handles, steps, at = forest.begin([STATES[0]]), 0, 0
    while at < len(turn):
        (nodes,) = rows_of(forest.draft(handles, max_nodes=8, room=[len(turn) - at]))
        right = min(best_path(nodes, turn[at:]) + 1, len(turn) - at)
        forest.commit(handles, [turn[at : at + right]])
        at += right
        steps += 1
    assert steps <= 1 + len(turn) // 3


@settings(max_examples=150, deadline=None)
@given(data=st.data(), alphabet=alphabets)
def test_what_follows_the_whole_prefix_is_drafted_by_both(data: st.DataObject, alphabet: tuple[int, ...]) -> None:
    """With nodes to spare, and as few places as the store looks at."""
    tokens = st.lists(st.sampled_from(alphabet), min_size=1, max_size=6)
    turns = data.draw(st.lists(tokens, min_size=1, max_size=5))
    spoken = data.draw(st.sampled_from(turns))[: data.draw(st.integers(0, 6))]
    assume(not spoken or sum(turn.count(spoken[-1]) for turn in [*turns, spoken]) <= 16)
    real = SpecForest(ForestConfig(end_tokens=frozenset({END})))
    plain = PlainForest(PlainConfig(end_tokens=frozenset({END}), levels=(("exact", 1024, 1.0),)))
    drafts = []
    for forest in (real, plain):
        for turn in turns:
            forest.insert(STATES[1], turn)
        handles = forest.begin([STATES[1]])
        forest.commit(handles, [spoken])
        drafts.append(rows_of(forest.draft(handles, max_nodes=128, room=[64]))[0])
    drafted, expected = (paths(nodes) for nodes in drafts)
    assert expected <= drafted


def paths(nodes: list[Node]) -> set[Said]:
    """The way from the root to each node."""
    ways: list[Said] = []
    for node in nodes:
        ways.append(((*ways[node.parent],) if node.parent >= 0 else ()) + (node.token,))
    return set(ways)
