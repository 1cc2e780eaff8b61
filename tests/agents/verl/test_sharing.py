from __future__ import annotations

from recording_engine import RecordingEngine, a_turn

from turntree.agents.engines.protocol import FinishReason, Sampling
from turntree.agents.verl.sharing import SharingEngine
from turntree.spec_tree import DialogueState
from turntree.spec_tree.exchange import SharedTurns, Swapped
from turntree.spec_tree.turn_batch import TurnBatch

HERE = DialogueState.from_tokens([1, 2], task="7", env="sums")


class Kept:
    """An exchange that keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[TurnBatch] = []

    def swap(self, own: TurnBatch, first: int) -> Swapped:
        self.given.append(own)
        return Swapped([])


async def noted(reason: FinishReason, state: DialogueState | None) -> list[list[int]]:
    kept = Kept()
    shared = SharedTurns(None, kept)
    completion = await SharingEngine(RecordingEngine(a_turn(7, 8, finish_reason=reason)), shared).generate(
        (1, 2), Sampling(), state=state
    )
    assert completion.token_ids == (7, 8)
    shared.swap()
    (batch,) = kept.given
    assert batch.states == [HERE] * len(batch)
    return [turn.tolist() for turn in batch.turns]


async def test_turns_that_ended_by_themselves_are_noted() -> None:
    assert await noted(FinishReason.STOP, HERE) == [[7, 8]]
    assert await noted(FinishReason.LENGTH, HERE) == [[7, 8]]


async def test_turns_that_were_given_up_or_have_no_state_are_not() -> None:
    assert await noted(FinishReason.ABORT, HERE) == []
    assert await noted(FinishReason.STOP, None) == []


async def test_what_the_engine_is_asked_reaches_it_unchanged() -> None:
    engine = RecordingEngine(a_turn(7))
    await SharingEngine(engine, SharedTurns(None, Kept())).generate((1,), Sampling(), state=HERE, draft=(4,))
    assert engine.asked == [((1,), Sampling(), HERE)]
    assert engine.options == [{"draft": (4,)}]
