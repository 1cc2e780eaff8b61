from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from forest_checks import turns_in

from turntree.agents.engines.drafting.chain_rows import ChainRows, ChainTurn, Counters
from turntree.agents.engines.drafting.session import DraftingSession, DraftTurn
from turntree.spec_tree import DialogueState, ForestConfig, SpecForest
from turntree.spec_tree.budget.draft_budget import Allowance
from turntree.spec_tree.errors import UnknownTurn

END, STOP, LONGEST = 2, 3, 32
ALL = Allowance(0.0, 1 << 20)
STATE, TURN = DialogueState(exact=7, task="t"), [11, 12, 13, 14, 15, 16, 17, END]


def ints(*rows: Sequence[int], width: int = 40) -> np.ndarray:
    made = np.full((len(rows), width), -1, np.int32)
    for row, tokens in zip(made, rows, strict=True):
        row[: len(tokens)] = tokens
    return made


@dataclass(slots=True, kw_only=True, eq=False)
class PlainTurn(DraftTurn):
    """The reference: a turn as lists."""

    turn: ChainTurn
    over: bool = False
    drafted: int = 0
    step: int = -2
    counted: list[int] = field(default_factory=lambda: [0, 0, 0])
    said: list[int] = field(default_factory=list)

    def own(self, tokens: Sequence[int]) -> list[int]:
        for count in range(1, len(tokens) + 1):
            length = self.committed + count
            if length >= self.turn.most or (length >= self.turn.least and tokens[count - 1] in self.turn.stops):
                self.over = True
                return list(tokens[:count])
        return list(tokens)

    def cut(self, draft: Sequence[int]) -> list[int]:
        end = next((i for i, token in enumerate(draft) if token in self.turn.stops), len(draft))
        return list(draft[: end + 1])


OWN = PlainTurn.own


class PlainRows:
    """The reference of ``ChainRows``: lists in a ``DraftingSession``, one row after the other."""

    def __init__(self, forest: SpecForest, longest: int) -> None:
        self.session, self.longest, self.count = DraftingSession(forest=forest), longest, 0

    def begin(self, turns: Sequence[ChainTurn]) -> list[PlainTurn]:
        made = [PlainTurn(turn=turn, turn_draft=turn.turn_draft) for turn in turns]
        self.session.begin(made, [turn.state for turn in turns], [turn.prompt for turn in turns])
        return made

    def step(
        self,
        turns: Sequence[PlainTurn],
        said: Sequence[list[int]],
        allowed: Allowance | None,
        most: int,
        widths: list[int],
    ) -> list[list[int]]:
        self.count += 1
        took = [
            (b, turn, turn.own(new))
            for b, (turn, new) in enumerate(zip(turns, said, strict=True))
            if new and not turn.over
        ]
        for _, turn, new in took:
            turn.drafted = turn.drafted if self.count == turn.step + 1 else 0
            turn.step = self.count
            turn.counted[0] += 1
            turn.counted[1] += turn.drafted
            turn.counted[2] += min(len(new) - 1, turn.drafted)
            turn.drafted = 0
        self.session.commit([turn for _, turn, _ in took], [new for _, _, new in took])
        self.session.end([turn for _, turn, _ in took if turn.over], keep=True)
        drafts: list[list[int]] = [[] for _ in turns]
        live = [(b, turn) for b, turn, _ in took if not turn.over]
        if allowed is None or not live:
            return drafts
        depths = [max(0, min(self.longest, widths[b], turn.turn.most - turn.committed - 1)) for b, turn in live]
        for index, (b, turn) in enumerate(live):
            drafts[b] = turn.cut(turn.turn_drafted(min(depths[index], most)))
            most -= len(drafts[b])
            depths[index] = 0 if drafts[b] else depths[index]
        batch = self.session.draft(
            [turn for _, turn in live],
            max_nodes=self.longest,
            max_depths=depths,
            min_probability=allowed.min_probability,
            chain=True,
            total_nodes=allowed.nodes,
        )
        for position, (b, turn) in enumerate(live):
            begin, end = batch.offsets[position : position + 2]
            drafts[b] = drafts[b] or turn.cut(batch.tokens[begin:end].tolist())
            turn.drafted = len(drafts[b])
        return drafts


class Play:
    """Random turns of few states in a changing batch: preempted, aborted, restarted, or over for a step already."""

    def __init__(self, seed: int, *, whole: bool, config: ForestConfig) -> None:
        self.rng = np.random.default_rng(seed)
        self.whole = whole
        self.mine, self.plain = SpecForest(config), SpecForest(config)
        self.rows, self.reference = ChainRows(self.mine, LONGEST), PlainRows(self.plain, LONGEST)
        self.templates = [[*self.rng.integers(4, 60, 15 + 5 * i).tolist(), END, 4, 5] for i in range(4)]
        self.batch: list[tuple[int, PlainTurn, list[int]]] = []  #: slot, reference and script of each request
        self.drafts: dict[int, list[int]] = {}
        self.tokens = 0

    def begin(self, count: int) -> None:
        new = [self.new() for _ in range(count)]
        slots = self.rows.begin([turn for turn, _ in new])
        plain = self.reference.begin([turn for turn, _ in new])
        self.batch += zip(slots, plain, [script for _, script in new], strict=True)

    def new(self) -> tuple[ChainTurn, list[int]]:
        rng = self.rng
        number = int(rng.integers(4))
        script = [int(token) if rng.random() > 0.08 else int(rng.integers(2, 60)) for token in self.templates[number]]
        turn = ChainTurn(
            state=DialogueState(exact=number + 1, task="t"),
            prompt=rng.integers(4, 60, int(rng.integers(1, 6))).tolist(),
            most=int(rng.integers(1, 50)),
            least=int(rng.integers(0, 10)),
            stops=frozenset([END, STOP, *range(100, 100 + int(rng.integers(3)))]),
            turn_draft=self.templates[number][: int(rng.integers(0, 40))] if rng.random() < 0.3 else (),
        )
        return turn, script

    def sampled(self, slot: int, turn: PlainTurn, script: list[int]) -> list[int]:
        if self.rng.random() < 0.1:  # it is preempted, or in the middle of its prompt
            return []
        rest, drafts = [*script[len(turn.said) :], *range(200, 240)], self.drafts.get(slot, [])
        hits = 0
        while hits < len(drafts) and drafts[hits] == rest[hits]:
            hits += 1
        return rest[: hits + 1]

    def step(self) -> None:
        rng = self.rng
        self.begin(int(rng.integers(3)) if len(self.batch) < 12 else 0)
        for entry in [entry for entry in self.batch if rng.random() < (0.5 if entry[1].over else 0.02)]:
            self.batch.remove(entry)
            self.leave(*entry[:2])
        said = [self.sampled(*entry) for entry in self.batch]
        slots = np.array([slot for slot, _, _ in self.batch], np.int32)
        allowed = [None, Allowance(1.0, 0), Allowance(0.0, int(rng.integers(1, 40))), ALL][int(rng.integers(4))]
        resting = self.reference.count % 90 > 60
        allowed = Allowance(1.0, 0) if resting and allowed else allowed
        most, widths = int(rng.integers(60)), rng.integers(0, 40, len(slots)).astype(np.int32)
        drafts, counts = np.full((len(slots), LONGEST), 77, np.int32), np.full(len(slots), 77, np.int32)
        if self.whole:
            stand = [[*turn.turn.prompt, *turn.said, *new] for (_, turn, _), new in zip(self.batch, said, strict=True)]
            ends = np.array([len(all_) if new else 0 for all_, new in zip(stand, said, strict=True)], np.int32)
            found = self.rows.read(slots, ints(*stand, width=400), ends)
        else:
            found = self.rows.read(slots, ints(*said))
        turns = [turn for _, turn, _ in self.batch]
        before = [turn.over for turn in turns]
        expected = self.reference.step(turns, said, allowed, most, widths.tolist())
        for turn, new, over in zip(turns, said, before, strict=True):
            turn.said += new if not over else []
        self.rows.propose(slots, drafts, counts, allowed=allowed, most=most, widths=widths)
        assert np.array_equal(drafts, ints(*expected, width=LONGEST))
        assert counts.tolist() == list(map(len, expected))
        self.tokens += found.tokens
        assert (found.rows, self.tokens) == (sum(map(bool, said)), self.reference.session.counts.tokens)
        assert sorted(found.ended.tolist()) == sorted(
            slot for (slot, turn, _), over in zip(self.batch, before, strict=True) if turn.over and not over
        )
        self.drafts = {slot: draft for slot, draft in zip(slots.tolist(), expected, strict=True)}
        for slot, turn, _ in self.batch:
            assert list(self.rows.counters(slot)) == turn.counted

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def leave(self, slot: int, turn: PlainTurn) -> None:
        keep = self.rng.random() < 0.5
        self.rows.end([slot], keep=keep)
        self.reference.session.end([turn], keep=keep)
        self.drafts.pop(slot, None)


@pytest.mark.parametrize("whole", [False, True], ids=["new tokens", "whole requests"])
@pytest.mark.parametrize("most", [1 << 20, 2048], ids=["", "with little memory"])
def test_random_turns_are_read_and_drafted_as_one_by_one(whole: bool, most: int) -> None:
    play = Play(most + whole, whole=whole, config=ForestConfig(max_tokens=most, rollouts_per_state=4, end_tokens={END}))
    play.steps(150)
    for entry in play.batch:
        play.leave(*entry[:2])
    assert play.mine.stats() == play.plain.stats()
    assert play.mine.stats().accepted > 100
    assert np.array_equal(play.mine.weights["odds"], play.plain.weights["odds"])


def test_a_reference_that_takes_tokens_sampled_after_an_end_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainTurn, "own", lambda self, tokens: (OWN(self, tokens), tokens)[1])
    play = Play(1, whole=False, config=ForestConfig(end_tokens={END}))
    with pytest.raises(AssertionError):
        play.steps(100)


def begun(rows: ChainRows, count: int = 1, **given: object) -> np.ndarray:
    turn = ChainTurn(**{"state": STATE, "prompt": [5, 6], "most": 20, "stops": frozenset([END]), **given})
    return np.array(rows.begin([turn] * count), np.int32)


def stepped(
    rows: ChainRows, slots: np.ndarray, *said: Sequence[int], allowed: Allowance | None = ALL
) -> list[list[int]]:
    drafts, counts = np.zeros((len(slots), LONGEST), np.int32), np.zeros(len(slots), np.int32)
    rows.read(slots, ints(*said))
    rows.propose(slots, drafts, counts, allowed=allowed)
    return [draft[:count].tolist() for draft, count in zip(drafts, counts, strict=True)]


def test_tokens_sampled_after_a_turns_end_belong_to_no_turn() -> None:
    forest = SpecForest()
    rows = ChainRows(forest, LONGEST)
    slots = begun(rows)
    assert stepped(rows, slots, [*TURN, 9]) == [[]]
    assert forest.finished([STATE]) == [1]
    assert stepped(rows, slots, [9, 9]) == [[]]  # the engine ran ahead
    assert rows.counters(slots[0]) == Counters(1, 0, 0)
    rows.end(slots.tolist(), keep=False)
    assert turns_in(forest.tree(STATE)) == {tuple(TURN): 1}
    assert stepped(rows, begun(rows), TURN[:1]) == [TURN[1:]]


def test_a_store_that_was_cleared_knows_no_turns_any_more() -> None:
    forest = SpecForest()
    rows = ChainRows(forest, LONGEST)
    slots = begun(rows)
    stepped(rows, slots, TURN[:2])
    forest.clear()
    with pytest.raises(UnknownTurn):
        stepped(rows, slots, TURN[2:3])


def test_tables_grow_for_more_turns_longer_turns_and_more_drafts() -> None:
    forest = SpecForest()
    rows = ChainRows(forest, LONGEST)
    turn_draft = list(range(100, 400))
    first = begun(rows, 200, turn_draft=turn_draft, most=1000)
    assert stepped(rows, first, *([turn_draft[:30]] * 200)) == [turn_draft[30 : 30 + LONGEST]] * 200
    rows.end(first[:150].tolist(), keep=False)
    slots = np.concatenate([first[150:], begun(rows, 400, turn_draft=turn_draft, most=1000, stops=frozenset(range(9)))])
    said = [turn_draft[30 : 30 + LONGEST + 1]] * 50 + [turn_draft[:1]] * 400
    assert stepped(rows, slots, *said) == [turn_draft[63 : 63 + LONGEST]] * 50 + [turn_draft[1 : 1 + LONGEST]] * 400
    tokens = np.arange(10, 1010, dtype=np.int32)[None]
    (slot,) = begun(rows, most=900)
    rows.read(np.array([slot]), tokens, np.array([700], np.int32))
    rows.end([*slots.tolist(), slot], keep=True)
    assert tuple(range(12, 710)) in turns_in(forest.tree(STATE))


def test_threads_that_share_a_batch_draft_what_one_does() -> None:
    # Turns of many tokens, so that the first thread is not done before the others arrive.
    rng = np.random.default_rng(0)
    turns = rng.integers(4, 30, (40, 120)).tolist()
    made, tried = [], []
    for threads in (1, 4):
        forest = SpecForest(ForestConfig(threads=threads))
        for number, turn in enumerate(turns):
            forest.insert(DialogueState(exact=number % 8 + 1, task="t", env="e"), turn)
        rows = ChainRows(forest, LONGEST)
        begun = [
            ChainTurn(state=DialogueState(exact=b % 8 + 1, task="t", env="e"), prompt=[1], most=200) for b in range(250)
        ]
        slots = np.array(rows.begin(begun), np.int32)
        drafts = []
        for step in range(20):
            said = [turns[b % 40][step : step + 1] for b in range(250)]
            drafts.append(stepped(rows, slots, *said, allowed=Allowance(0.0, 3000 if step % 2 else 400)))
        made.append(drafts)
        tried.append(sum(len(draft) for step in drafts for draft in step))
    assert made[0] == made[1]
    assert tried[0] > 5000
