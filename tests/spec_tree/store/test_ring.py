from collections import defaultdict

import numpy as np
import pytest
from forest_checks import Said, best_path, broken, indexed, malformed, misremembered, rows_of, same_followers, unfounded
from tables import table

from turntree.spec_tree import DialogueState, ForestConfig, SpecForest

END = 0


def state(index: int) -> DialogueState:
    return DialogueState.from_tokens([index], task=f"t{index % 3}", env="e")


def whole(forest: SpecForest, at: DialogueState, turn: list[int]) -> bool:
    handles = forest.begin([at])
    (nodes,) = rows_of(forest.draft(handles, max_nodes=128, max_depths=[128], chain=True))
    forest.end(handles, keep=False)
    return best_path(nodes, turn) == len(turn)


def is_indexed(forest: SpecForest, at: DialogueState) -> bool:
    return not forest.rollouts.cold.count(at.exact) and bool(forest.rollouts.by_state[at.exact].turns)


class Stream:
    def __init__(self, config: ForestConfig, seed: int, *, longest: int) -> None:
        self.forest = SpecForest(config)
        self.rng = np.random.default_rng(seed)
        self.longest = longest
        self.finished: dict[DialogueState, list[Said]] = defaultdict(list)
        #: by handle: state, sampled tokens, context
        self.live: dict[int, tuple[DialogueState, list[int], list[int]]] = {}
        self.themes = [self.rng.integers(1, 2**31, 3 * longest) for _ in range(5)]

    def say(self, most: int) -> list[int]:
        theme = self.themes[self.rng.integers(len(self.themes))]
        start, length = self.rng.integers(len(theme)), self.rng.integers(1, most + 1)
        said = theme[start : start + length].tolist()
        return [int(self.rng.integers(1, 400)) if self.rng.random() < 0.05 else token for token in said]

    def step(self) -> None:
        forest, rng = self.forest, self.rng
        kind = rng.integers(10)
        at = state(int(rng.integers(12)))
        if kind == 0:
            said = self.say(self.longest)
            forest.insert(at, said)
            self.finished[at].append(tuple(said))
        elif kind <= 2 and len(self.live) < 8:
            count = int(rng.integers(1, 4))
            asked = [self.say(50) for _ in range(count)]
            for handle, context in zip(forest.begin([at] * count, asked), asked, strict=True):
                self.live[handle] = at, [], context
        elif kind == 3 and self.live:
            handle = int(rng.choice(list(self.live)))
            keep = bool(rng.random() < 0.7)
            forest.end([handle], keep=keep)
            at, said, _ = self.live.pop(handle)
            if keep and said:
                self.finished[at].append(tuple(said))
        elif self.live:
            handles = list(self.live)
            said_now = [self.say(max(1, self.longest // 8)) for _ in handles]
            forest.commit(handles, said_now)
            for handle, said in zip(handles, said_now, strict=True):
                self.live[handle][1].extend(said)

    def complaints(self) -> list[str]:
        alike = same_followers("e")
        wrong = broken(self.forest)
        wrong += misremembered(self.forest, self.finished, (tuple(said) for _, said, _ in self.live.values()))
        if self.live:
            handles = list(self.live)
            batch = self.forest.draft(handles, max_nodes=32, max_depths=[20] * len(handles))
            held = indexed(self.forest)
            for handle, nodes in zip(handles, rows_of(batch), strict=True):
                _, said, asked = self.live[handle]
                last = said[-1] if said else -1
                wrong += malformed(nodes, last=last, room=20, max_nodes=32)
                wrong += unfounded(nodes, last, held, asked, alike)
        return wrong


@pytest.fixture
def forest() -> SpecForest:
    return SpecForest(ForestConfig(max_tokens=1024))


@pytest.mark.parametrize(("settings", "longest"), table(__file__, "small_rings"))
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.release)])
def test_whatever_happens_in_a_small_ring_what_is_held_is_what_was_said(settings, longest, seed):
    stream = Stream(ForestConfig(**settings), seed, longest=longest)
    for step in range(300):
        stream.step()
        assert not (wrong := broken(stream.forest)), (step, wrong)
        if step % 6 == 0:
            assert not (wrong := stream.complaints()), (step, wrong)
    stats = stream.forest.stats()
    assert stats.committed > settings["max_tokens"]  # it went around
    assert stats.evicted_rollouts
    stream.forest.end(list(stream.live), keep=False)
    assert not broken(stream.forest)


def test_a_turn_that_is_in_the_way_and_was_not_asked_for_becomes_cold_and_comes_back_when_one_begins() -> None:
    forest = SpecForest(ForestConfig(max_tokens=1024))
    turns = {index: list(range(100 * index, 100 * index + 50)) for index in range(1, 40)}
    for index, turn in turns.items():
        forest.insert(state(index), turn)
    stats = forest.stats()
    assert stats.tokens + stats.cold_tokens == 39 * 50
    assert stats.tokens <= 1024
    assert stats.evicted_rollouts == 0
    assert not is_indexed(forest, state(1))
    assert is_indexed(forest, state(39))
    handles = forest.begin([state(1)])
    assert is_indexed(forest, state(1))
    forest.end(handles, keep=False)
    for index in (2, 20, 39):
        assert whole(forest, state(index), turns[index])
    assert not broken(forest)


def test_a_state_that_was_visited_since_gets_a_second_chance_and_one_that_was_not_does_not(forest: SpecForest) -> None:
    forest.insert(state(0), [1] * 50)
    forest.insert(state(1), [2] * 50)
    slots = []
    for index in range(2, 40):
        if index == 5:
            forest.end(forest.begin([state(0)]), keep=False)
        forest.insert(state(index), [index] * 50)
        slots.append((is_indexed(forest, state(0)), is_indexed(forest, state(1))))
    assert (True, False) in slots  # after the first time around
    assert slots[-1] == (False, False)  # the second time around it had not been visited again
    assert (False, True) not in slots


def test_turns_that_come_back_are_older_than_those_that_stayed() -> None:
    forest = SpecForest(ForestConfig(max_tokens=1024, rollouts_per_state=3))
    forest.insert(state(0), [1] * 40)
    for index in range(1, 30):
        forest.insert(state(index), [9] * 50)
    assert not is_indexed(forest, state(0))
    forest.insert(state(0), [2] * 40)  # brings the first back
    forest.insert(state(0), [3] * 40)
    assert [turn[0] for turn in forest.rollouts.known(state(0), forest.live_table.turns)] == [1, 2, 3]
    forest.insert(state(0), [4] * 40)
    assert [turn[0] for turn in forest.rollouts.known(state(0), forest.live_table.turns)] == [2, 3, 4]


@pytest.mark.parametrize("at_once", [1, 7, 100, 5000])
def test_a_live_turn_longer_than_the_ring_is_drafted_for_and_not_kept(at_once: int, forest: SpecForest) -> None:
    turn = list(range(1, 5001))
    handles = forest.begin([state(0), state(1)])
    for start in range(0, 5000, at_once):
        forest.commit(handles, [turn[start : start + at_once], []])
        if start % 50 == 0:
            assert not broken(forest)
    forest.insert(state(2), [4999, 5000, 7, 8])
    (nodes,) = rows_of(forest.draft(handles[:1], max_nodes=2, max_depths=[8]))
    assert [node.token for node in nodes] == [7, 8]
    forest.commit(handles, [[7, 8], [5]])
    forest.end(handles)
    stats = forest.stats()
    assert (stats.rollouts, stats.evicted_rollouts, stats.live) == (2, 1, 0)
    assert not forest.tree(state(0)).children
    assert not broken(forest)


def test_a_finished_turn_too_long_for_the_log_is_held_without_index_and_counts_for_the_quota() -> None:
    forest = SpecForest(ForestConfig(max_tokens=1024, rollouts_per_state=2))
    for index in range(4):
        forest.insert(state(0), list(range(index, 1000)))
        forest.begin([state(0)])
    assert [len(turn) for turn in forest.rollouts.known(state(0), forest.live_table.turns)] == [998, 997]
    stats = forest.stats()
    assert (stats.rollouts, stats.evicted_rollouts, stats.tokens) == (2, 2, 0)
    assert not broken(forest)


def test_more_live_turns_than_the_ring_has_room_for_do_no_harm(forest: SpecForest) -> None:
    handles = forest.begin([state(index) for index in range(100)])
    for _ in range(20):
        forest.commit(handles, [[1, 2, 3]] * 100)
        assert not broken(forest)
    assert len(forest.draft(handles, max_nodes=4, max_depths=[4] * 100).tokens)
    forest.end(handles)
    stats = forest.stats()
    assert stats.rollouts + stats.evicted_rollouts == 100
    assert stats.rollouts > 2
    assert not broken(forest)


def test_what_was_overwritten_is_not_found_in_the_room_that_a_live_turn_reserves() -> None:
    forest = SpecForest(ForestConfig(max_tokens=1024, max_cold_tokens=0))
    alike = same_followers("e")
    rng = np.random.default_rng(0)
    for _ in range(60):
        forest.insert(state(1), rng.integers(0, 30, 60).tolist())
        handles = forest.begin([state(0)] * 2)
        for _ in range(12):
            said = rng.integers(0, 30, 2).tolist()
            forest.commit(handles, [said, said[:1]])
            held = indexed(forest)
            first, second = rows_of(forest.draft(handles, max_nodes=64, max_depths=[30] * 2))
            assert not unfounded(first, said[1], held, alike=alike)
            assert not unfounded(second, said[0], held, alike=alike)
        forest.end(handles, keep=False)


def test_places_in_a_full_ring_are_looked_at_once() -> None:
    """The oldest position links to the newest one's; a walk that went on would count all positions twice."""
    forest = SpecForest(ForestConfig(max_tokens=1024, max_cold_tokens=0))
    for index in range(200):
        forest.insert(state(index % 20), [7, 8, 9] + [100 + index] * 60)
    handles = forest.begin([state(3), state(99)])
    forest.commit(handles, [[7, 8], [7, 8]])
    forest.draft(handles, max_nodes=64, max_depths=[8, 8])
    live = forest.live_table.turns
    for row in forest.live_table.rows(handles):
        positions = live.candidates[row, : live.candidate_count[row]].tolist()
        assert 1 < len(positions) == len(set(positions))


@pytest.mark.parametrize("pieces", [pytest.param(1, marks=pytest.mark.release), 40])
def test_growing_keeps_every_turn_and_finds_the_newest_first(pieces: int) -> None:
    forest = SpecForest(ForestConfig(max_tokens=1_000_000, rollouts_per_state=10_000))
    rng = np.random.default_rng(0)
    said: dict[DialogueState, list[Said]] = defaultdict(list)
    elsewhere = DialogueState.from_tokens([7], task="another", env="e")
    small = len(forest.rollouts.store.log.tokens)
    handles = forest.begin([state(index) for index in range(5)])
    live: list[list[int]] = [[] for _ in handles]
    for _ in range(pieces):
        more = [rng.integers(0, 1000, 200).tolist() for _ in handles]
        forest.commit(handles, more)
        for old, new in zip(live, more, strict=True):
            old += new
    while len(forest.rollouts.store.log.tokens) < 4 * small:
        turn = rng.integers(0, 1000, 4000).tolist()
        forest.insert(elsewhere, turn)
        said[elsewhere].append(tuple(turn))
    assert not broken(forest)
    assert not misremembered(forest, said, map(tuple, live))
    for index, turn in enumerate(live):
        assert whole(forest, state(index), turn[:100])
    # the newest of the alike
    for token in range(2000, 2003):
        forest.insert(state(8), [1, 2, token])
    reader = forest.begin([state(8)])
    forest.commit(reader, [[1, 2]])
    forest.draft(reader, max_nodes=8, max_depths=[8])
    turns, row = forest.live_table.turns, forest.live_table.rows([reader[0]])[0]
    order = [int(forest.rollouts.store.log.tokens[position + 1]) for position in turns.candidates[row, :3]]
    assert order == [2002, 2001, 2000]


def test_more_turns_than_slots_at_first_are_all_found() -> None:
    forest = SpecForest(ForestConfig(rollouts_per_state=5000))
    for index in range(3000):
        forest.insert(state(index % 7), [index])
    assert forest.stats().rollouts == 3000
    assert sum(forest.tree(state(index)).count for index in range(7)) == 3000
    assert not broken(forest)
