import asyncio
from dataclasses import replace

import pytest
from interrupting import InterruptedEngine

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.agents.errors import EngineLost
from turntree.agents.resuming.interrupted_turns import InterruptedTurns, ResumeCounts, joined, longer, versions_of
from turntree.agents.resuming.resume_config import OnResume, ResumeConfig

PROMPT = (3, 1, 4, 1, 5)
SAMPLING = Sampling(temperature=0.9, top_p=0.95, max_tokens=16, stop_token_ids=(31,))
SEEDS = range(4)


def turns_of(engine: InterruptedEngine, how: OnResume, **others) -> tuple[list[Completion], ResumeCounts]:
    counts = ResumeCounts()
    turns = InterruptedTurns(engine, how, counts, wait=engine.update, **others)

    async def play() -> list[Completion]:
        with engine.engine:
            return [await turns.generate(TurnRequest(PROMPT, replace(SAMPLING, seed=seed))) for seed in SEEDS]

    return asyncio.run(play()), counts


@pytest.fixture(scope="module")
def anew() -> list[Completion]:
    return turns_of(InterruptedEngine(version=1), OnResume.TURN)[0]


@pytest.mark.parametrize("moment", [1, 5, 9])
def test_an_interrupted_turn_is_the_one_that_the_new_weights_alone_sample(moment: int, anew: list[Completion]) -> None:
    engine = InterruptedEngine([moment])
    turns, counts = turns_of(engine, OnResume.TURN)
    assert [t.token_ids for t in turns] == [t.token_ids for t in anew]
    assert {t.weights_version for t in turns} == {1}
    assert turns[0].logprobs == pytest.approx(anew[0].logprobs, abs=1e-12)
    assert set(turns[0].levels) == {"B"}
    assert counts.interruptions == counts.reverified_turns == 1
    assert counts.offered == moment == counts.kept + counts.dropped


def test_a_turn_interrupted_during_its_reverification_keeps_its_draft(anew: list[Completion]) -> None:
    engine = InterruptedEngine([6, 8])
    turns, counts = turns_of(engine, OnResume.TURN)
    again = turns_of(InterruptedEngine(version=2), OnResume.TURN)[0]
    assert [t.token_ids for t in turns] == [t.token_ids for t in again] != [t.token_ids for t in anew]
    assert counts.interruptions == 2
    assert longer((1, 2, 3), ()) == (1, 2, 3)


@pytest.mark.parametrize("how", [OnResume.TURN, OnResume.KEEP])
def test_a_resumed_turn_outlives_its_engine(how: OnResume) -> None:
    # Request 2 resumes the turn that the update ended.
    whole, counts = turns_of(InterruptedEngine([5]), how)
    turns, lost = turns_of(InterruptedEngine([5], deaths={2}), how)
    assert [t.token_ids for t in turns] == [t.token_ids for t in whole]
    assert (lost.lost_turns, counts.lost_turns) == (1, 0)
    assert (lost.interruptions, lost.kept) == (counts.interruptions, counts.kept)


def test_a_turn_that_kills_every_engine_is_given_up() -> None:
    # Control.
    with pytest.raises(EngineLost):
        turns_of(InterruptedEngine([5], deaths={2, 3}), OnResume.TURN)


def test_tokens_kept_without_a_look_are_another_turn(anew: list[Completion]) -> None:
    # Control, and verl's behaviour: each token keeps its version.
    turns, counts = turns_of(InterruptedEngine([4]), OnResume.KEEP)
    assert turns[0].token_ids != anew[0].token_ids
    assert turns[0].versions == (0,) * 4 + (1,) * (len(turns[0].token_ids) - 4)
    assert len(turns[0].token_ids) == len(turns[0].logprobs) <= SAMPLING.max_tokens
    assert counts.reverified_turns == 0


def test_noise_that_was_trained_on_is_not_called_exact() -> None:
    # Control: the same seeds, one of which was trained on.
    turns, _ = turns_of(InterruptedEngine([5]), OnResume.TURN, trained={0})
    assert set(turns[0].levels) == {"C"}


@pytest.mark.parametrize(("seed", "tokens"), [(None, (1, 2)), (3, ())])
def test_without_noise_or_tokens_of_its_own_a_turn_is_sampled_anew(seed: int | None, tokens: tuple[int, ...]) -> None:
    asked = []

    class Engine:
        async def generate(self, request: TurnRequest) -> Completion:
            asked.append(request)
            reason = FinishReason.ABORT if len(asked) == 1 else FinishReason.STOP
            return Completion(token_ids=tokens or (9,), logprobs=(0.0,) * len(tokens or (9,)), finish_reason=reason)

    turns = InterruptedTurns(Engine(), OnResume.TURN, ResumeCounts(), wait=lambda: asyncio.sleep(0))
    asyncio.run(turns.generate(TurnRequest(PROMPT, replace(SAMPLING, seed=seed))))
    assert asked[1].draft == (() if seed is None else (9,))


def test_two_parts_of_a_turn_are_one_with_all_that_either_reports() -> None:
    one = Completion(token_ids=(1, 2), logprobs=(-1.0, -2.0), finish_reason=FinishReason.ABORT, weights_version=3)
    rest = Completion(
        token_ids=(5,),
        logprobs=(-3.0,),
        finish_reason=FinishReason.STOP,
        weights_version=4,
        behaviour_logprobs=(-0.5,),
        accepted=(True,),
        levels="A",
    )
    turn = joined(one, rest)
    assert (turn.token_ids, turn.logprobs, turn.behaviour_logprobs) == ((1, 2, 5), (-1, -2, -3), (-1, -2, -0.5))
    assert versions_of(turn) == (3, 3, 4)
    assert (turn.levels, turn.accepted) == ("AAA", (False, False, True))
    assert versions_of(one) == (3, 3)


def test_an_unknown_way_to_resume_is_refused() -> None:
    assert ResumeConfig().on_resume is OnResume.EPISODE
    with pytest.raises(ValueError, match="nothing"):
        ResumeConfig(on_resume="nothing")
