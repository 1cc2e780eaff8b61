import numpy as np
import pytest
from forest_checks import turns_in

from turntree.agents.engines.drafting.session import DraftingSession, DraftTurn
from turntree.agents.engines.drafting.step_bound import common_length, draft_length
from turntree.agents.engines.drafting.trees import within
from turntree.spec_tree import DialogueState, ForestConfig, SpecForest

STATE, SPEECH = DialogueState(exact=7, task="t"), [5, 6, 7, 8, 9]


def begun(session: DraftingSession, turns: int = 1, **fields: object) -> list[DraftTurn]:
    made = [DraftTurn(**fields) for _ in range(turns)]
    session.begin(made, [STATE] * turns, [[1, 2]] * turns)
    return made


def drafted(session: DraftingSession, turns: list[DraftTurn], **limits: int) -> list[int]:
    batch = session.draft(turns, max_nodes=8, max_depths=[8] * len(turns), min_probability=0.0, chain=True, **limits)
    return batch.tokens.tolist()


def test_the_store_receives_each_token_once_and_drafts_it_for_other_turns_until_the_turn_ends():
    session = DraftingSession(forest=SpecForest(ForestConfig()))
    (first,) = begun(session)
    for begin in (0, 2):
        session.commit([first], [SPEECH[begin : begin + 2]])
    (second,) = begun(session)
    assert drafted(session, [second]) == SPEECH[:4]
    assert drafted(session, [second], total_nodes=0) == []
    session.end([first], keep=True)
    session.end([second], keep=False)
    session.commit([first, second], [[9], []])  # an engine may not know yet that a turn is over
    assert (first.handle, first.committed, session.counts.tokens) == (None, 5, 4)
    stats = session.forest.stats()
    assert (stats.live, stats.committed, session.forest.finished([STATE])) == (0, 4, [1])
    session = DraftingSession(forest=SpecForest(ForestConfig()))
    first, second = begun(session, 2)
    session.commit([first], [SPEECH])
    assert drafted(session, [second]) == SPEECH
    session.end([first], keep=True)
    for token in SPEECH:  # of the drafts only the first was verified, and nothing was drafted after it
        session.commit([second], [[token]])
    session.end([second], keep=True)
    assert session.forest.stats().accepted == 1


def test_a_draft_continues_while_it_is_accepted_and_is_dropped_then_also_without_a_store():
    session = DraftingSession(forest=None)
    (turn,) = begun(session, turn_draft=SPEECH)
    assert (turn.turn_drafted(2), turn.turn_drafted(-1), drafted(session, [turn])) == (SPEECH[:2], [], [])
    session.commit([turn], [SPEECH[:2]])
    assert (turn.turn_drafted(9), turn.handle) == (SPEECH[2:], None)
    session.commit([turn], [[7, 99]])
    assert (turn.turn_drafted(9), turn.committed) == ([], 4)


def test_while_nothing_is_drafted_the_store_receives_many_steps_at_once_and_all_before_it_drafts(monkeypatch):
    forest = SpecForest(ForestConfig())
    session, commits, commit = DraftingSession(forest=forest), [], forest.commit
    monkeypatch.setattr(forest, "commit", lambda turns, said: (commits.append(said), commit(turns, said)))
    first, second = begun(session, 2)
    for token in range(100, 120):
        assert drafted(session, [first, second], total_nodes=0) == []
        session.commit([first, second], [[token], [token + 50]])
    assert commits == [[list(range(100, 117)), list(range(150, 167))]]
    (third,) = begun(session)
    session.commit([third], [list(range(150, 164))])
    assert drafted(session, [third]) == list(range(164, 170))
    assert (len(commits), forest.stats().committed) == (2, 54)
    session.commit([second], [[9]])
    session.commit([second], [[10]])
    session.end([first], keep=True)
    assert (len(commits), session.counts.tokens) == (3, 56)
    session.end([second], keep=True)
    assert commits[-1] == [[10]]
    session.end([third], keep=False)
    assert turns_in(forest.tree(STATE)) == {tuple(range(100, 120)): 1, (*range(150, 170), 9, 10): 1}


def test_trees_with_tokens_beyond_the_vocabulary_are_not_drafted() -> None:
    forest = SpecForest()
    states = [DialogueState(exact=number, env=str(number)) for number in (1, 2, 3)]
    forest.insert_all(states, [[1, 2], [3, 2**31 - 1], [4, 5]])
    draft = forest.draft(forest.begin(states), max_nodes=4, max_depths=[4] * 3)
    kept = within(draft, 10)
    assert (kept.tokens.tolist(), kept.offsets.tolist()) == ([1, 2, 4, 5], [0, 2, 2, 4])
    assert within(draft, 2**31).tokens.tolist() == [1, 2, 3, 2**31 - 1, 4, 5]


def test_drafts_are_shorter_the_more_requests_run_and_never_longer_than_the_engine_verifies() -> None:
    lengths = [draft_length(rows, 32) for rows in range(1, 400)]
    assert lengths == sorted(lengths, reverse=True)
    assert (lengths[0], lengths[15], lengths[63], lengths[-1]) == (32, 32, 8, 8)
    assert all(length * rows <= 512 for rows, length in enumerate(lengths, 1) if length > 8)
    assert {draft_length(rows, 4) for rows in (1, 64, 256)} == {4}


@pytest.mark.parametrize(
    ("rows", "lengths", "most", "length"),
    [
        (8, [7, 1], 256, 8),  # padding is free
        (8, [3], 256, 4),
        (8, [7, 1], 60, 4),
        (8, [], 256, 0),
        (40, [32] * 40, 2000, 8),
        (120, [8] * 40, 2000, 8),
        (120, [8] * 20, 2000, 0),
        (120, [2] * 40 + [8] * 2, 2000, 2),
        (250, [8] * 250, 2000, 4),
    ],
    ids=[
        "no shorter than the longest", "nor longer", "within the bound of the step", "none without drafts",
        "no longer than so many requests may have", "a quarter is drafted", "less is", "of the longer ones less is",
        "no more than are verified",
    ],
)  # fmt: skip
def test_drafts_of_one_length_are_as_long_as_they_have_to_be_and_pay(
    rows: int, lengths: list[int], most: int, length: int
) -> None:
    drafted = np.array([*lengths, *[0] * (rows - len(lengths))], np.int32)
    assert common_length(drafted, [2, 4, 8, 16, 32], most) == length
