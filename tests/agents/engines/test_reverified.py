from dataclasses import replace

import pytest

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, Sampling, TurnRequest
from turntree.agents.engines.reverified import ended_turn, replay, reverifiable, usable
from turntree.agents.engines.served.turns import ServedTurns

TURN = (3, 1, 4, 1, 5, 9, 2, 6)
PROMPT = (7, 7)


class Policy:
    """Always samples ``TURN``; ``shift`` is the fault of a re-verification that is off by that many positions."""

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift
        self.asked: list[tuple[int, int]] = []

    async def reverify(self, request: TurnRequest) -> Completion:
        count = len(request.draft)
        said = TURN[self.shift : self.shift + count]
        return self._completion(said)

    async def continue_turn(self, request: TurnRequest, given: int) -> Completion:
        assert tuple(request.prompt_ids) == (*PROMPT, *TURN[:given])
        self.asked.append((given, request.sampling.max_tokens))
        return replace(self._completion(TURN[given:][: request.sampling.max_tokens]), draft=DraftStats(verify_steps=2))

    @staticmethod
    def _completion(tokens: tuple[int, ...]) -> Completion:
        logprobs = tuple(-float(token) for token in tokens)
        return Completion(
            token_ids=tokens, logprobs=logprobs, behaviour_logprobs=logprobs, finish_reason=FinishReason.LENGTH
        )


def asked(draft: tuple[int, ...], most: int = len(TURN), stops: tuple[int, ...] = ()) -> TurnRequest:
    return TurnRequest(PROMPT, Sampling(max_tokens=most, seed=0, stop_token_ids=stops), draft=draft)


@pytest.mark.parametrize("right", range(len(TURN) + 1))
async def test_the_turn_is_the_policys_wherever_the_draft_is_wrong(right: int) -> None:
    policy = Policy()
    turn_draft = (*TURN[:right], *(0 for _ in TURN[right:]))
    turn = await replay(asked(turn_draft), policy.reverify, policy.continue_turn)
    assert turn.token_ids == TURN
    assert turn.logprobs == turn.behaviour_logprobs == tuple(-float(token) for token in TURN)
    assert turn.accepted == tuple(position < right for position in range(len(TURN)))
    assert (turn.draft.drafted, turn.draft.accepted) == (len(TURN), right)
    assert turn.draft.verify_steps == (1 if right >= len(TURN) - 1 else 3)
    assert policy.asked == ([] if right >= len(TURN) - 1 else [(right + 1, len(TURN) - right - 1)])


async def test_a_reverification_that_is_a_position_off_is_noticed() -> None:
    policy = Policy(shift=1)
    with pytest.raises(AssertionError):
        await replay(asked(TURN), policy.reverify, policy.continue_turn)


async def test_a_turn_ends_at_its_limit_and_at_a_stop_token() -> None:
    policy = Policy()
    short = await replay(asked(TURN, most=3), policy.reverify, policy.continue_turn)
    ended = await replay(asked(TURN, stops=(5,)), policy.reverify, policy.continue_turn)
    assert (short.token_ids, short.finish_reason) == (TURN[:3], FinishReason.LENGTH)
    assert (ended.token_ids, ended.finish_reason) == (TURN[:5], FinishReason.STOP)
    drawn = await replay(asked((*TURN[:4], 0, 0, 0, 0), stops=(5,)), policy.reverify, policy.continue_turn)
    assert (drawn.token_ids, drawn.finish_reason) == (TURN[:5], FinishReason.STOP)
    assert policy.asked == []


class Dialect:
    """A request is the tokens to sample, and so is its answer."""

    priority_setting = ""
    spare = 0

    def reverifies(self, sampling: Sampling) -> bool:
        return True

    def turn(self, request: TurnRequest, given: int) -> tuple[int, ...]:
        return TURN[given:][: request.sampling.max_tokens]

    def reverify(self, request: TurnRequest) -> tuple[int, ...]:
        return TURN[: len(request.draft)]

    def again(self, asked: object, answer: object) -> None:
        return None

    def completion(self, answer: tuple[int, ...], sampling: Sampling) -> Completion:
        return Policy._completion(answer)

    def drawn(self, answer: tuple[int, ...], request: TurnRequest) -> Completion:
        return Policy._completion(answer)


class Server(ServedTurns):
    """The second request waits for new weights, which then answer it."""

    asked = 0

    async def _ask(self, name: str, asked: tuple[int, ...]) -> tuple[int, ...]:
        self.asked += 1
        if self.asked == 2:
            self.version = 1
        return asked


@pytest.mark.parametrize("gated", [True, False])
async def test_a_request_that_waited_for_new_weights_is_of_them(gated: bool) -> None:
    """Control (not gated): its tokens continue those of the old weights in one turn."""
    server = Server(Dialect(), max_context=64, vocabulary=10)  # type: ignore[arg-type] # neither scores nor refuses
    server.gated = gated
    turn = await server.generate(asked((*TURN[:3], 0, 0)))
    assert turn.token_ids == TURN
    assert (turn.weights_version, server.asked) == ((1, 3) if gated else (0, 2))


async def test_an_aborted_reverification_is_an_aborted_turn() -> None:
    async def reverify(request: TurnRequest) -> Completion:
        return Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT)

    turn = await replay(asked(TURN), reverify, Policy().continue_turn)
    assert (turn.token_ids, turn.finish_reason) == ((), FinishReason.ABORT)


def test_a_turn_that_a_pass_ends_differs_from_one_that_continues() -> None:
    assert ended_turn((1, 2, 3), (1, 2, 3, 4), (), 4) == [1, 2, 3, 4]
    assert ended_turn((1, 2, 3), (1, 2, 3, 4), (), 5) == []
    assert ended_turn((1, 2, 3), (1, 9, 7), (9,), 5) == [1, 9]
    assert ended_turn((1, 2, 3), (1, 8, 9), (9,), 5) == []  # what was drawn behind the first difference is no turn
    assert ended_turn((1, 2, 3), (), (9,), 5) == []


def test_only_drafts_that_a_pass_draws_alike_and_saves_are_reverified() -> None:
    def can(passes_from: int = 3, **sampling: float) -> bool:
        request = asked(TURN)
        return reverifiable(replace(request, sampling=replace(request.sampling, **sampling)), passes_from=passes_from)

    assert can()
    assert not can(passes_from=len(TURN))
    assert not any(
        can(**{name: value})
        for name, value in {
            "temperature": 0.0,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.1,
            "top_logprobs": 2,
            "seed": None,
        }.items()
    )
    assert usable(asked(TURN, stops=(4,))) == [3, 1, 4]


async def test_an_engine_that_draws_nothing_samples_the_whole_turn_with_its_draft() -> None:
    async def reverify(request: TurnRequest) -> None:
        return None

    async def continue_turn(request: TurnRequest, given: int) -> Completion:
        assert (tuple(request.draft), given) == (TURN, 0)
        return Policy._completion(TURN)

    assert (await replay(asked(TURN), reverify, continue_turn)).token_ids == TURN


async def test_where_the_behaviour_of_the_rest_is_not_known_it_is_not_of_the_turn() -> None:
    class Cut(Policy):
        async def continue_turn(self, request: TurnRequest, given: int) -> Completion:
            return replace(await super().continue_turn(request, given), behaviour_logprobs=())

    turn = await replay(asked((*TURN[:3], 0, 0)), Cut().reverify, Cut().continue_turn)
    assert (turn.token_ids, turn.behaviour_logprobs, len(turn.logprobs)) == (TURN, (), len(TURN))
