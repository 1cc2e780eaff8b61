"""The exact joint distribution of what a policy was trained on and of what it samples next, begun before the update.

Turns and episodes run through the product's own code (``agents.resuming``) over a toy engine, whose weights are
updated at a given number of drawn tokens, whatever runs then. Its noise is one coin a (seed, position), and a token
is where the coin falls among the cumulated probabilities. A coin is an interval, split where a policy's decision
divides it: every coin of all policies is seen, in few pieces. ``broken`` names a fault: the control.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from laws.enumeration import Choose, Floats, Tokens, outcomes
from laws.policies import Law, Policy, finish
from laws.run_ahead import learnt
from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest, derive_seed
from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.agents.resuming.interrupted_episodes import InterruptedEpisode, Newest
from turntree.agents.resuming.interrupted_turns import InterruptedTurns, ResumeCounts
from turntree.agents.resuming.recorded_env import RecordedEnv
from turntree.agents.resuming.resume_config import OnResume

SHOWN, OWN = 1, 2
"""Seeds of what is trained on, and of what is sampled next."""
OBSERVATION = 100
"""Added to an observation to make it a token of its own."""
_LOOP = asyncio.new_event_loop()


class Coins:
    """A coin for each seed and position, known as far as decisions have told."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._known: dict[tuple[int, int], tuple[float, float]] = {}

    def draw(self, p: Floats, seed: int, position: int) -> int:
        """The token of ``p`` on which the coin falls."""
        low, high = self._known.get((seed, position), (0.0, 1.0))
        ends = [*accumulate(p.tolist()[:-1]), 1.0]
        starts = [0.0, *ends[:-1]]
        inside = [max(0.0, min(e, high) - max(s, low)) for s, e in zip(starts, ends, strict=True)]
        whole = sum(inside)
        token = self._choose([share / whole for share in inside])
        self._known[seed, position] = max(low, starts[token]), min(high, ends[token])
        return token


class ToyEngine:
    """An engine whose weights are updated after so many drawn tokens, each update ending what runs.

    Args:
        coins: Its noise.
        policies: One for each version of the weights.
        moments: Tokens drawn before each update.
        broken: ``anew`` draws with fresh noise from the first token on that differs from a draft.
    """

    def __init__(self, coins: Coins, policies: Sequence[Policy], moments: Sequence[int], broken: str = "") -> None:
        self._coins = coins
        self._policies = policies
        self._moments = list(moments)
        self._broken = broken
        self._drawn = 0
        self.version = 0

    @property
    def policy(self) -> Policy:
        """Of the present weights."""
        return self._policies[self.version]

    @property
    def _due(self) -> bool:
        return bool(self._moments) and self._drawn >= self._moments[0]

    async def update(self) -> None:
        """What waits for the new weights goes on."""
        if self._due:
            del self._moments[0]
            self.version += 1

    async def generate(self, request: TurnRequest) -> Completion:
        """A turn, up to its end or to an update."""
        prompt, sampling, said = tuple(request.prompt_ids), request.sampling, []
        seed = sampling.seed
        assert seed is not None
        turn_draft = tuple(request.draft)
        reason = FinishReason.LENGTH
        while len(said) < sampling.max_tokens and not (said and said[-1] in sampling.stop_token_ids):
            if self._due:
                reason = FinishReason.ABORT
                break
            position = len(said)
            p = self.policy(prompt + tuple(said))
            token = self._coins.draw(p, seed, position)
            if self._broken == "anew" and position < len(turn_draft) and turn_draft[position] != token:
                turn_draft, seed = (), derive_seed(seed, 1)
                token = self._coins.draw(p, seed, position)
            said.append(token)
            self._drawn += 1
        return Completion(
            token_ids=tuple(said), logprobs=(0.0,) * len(said), finish_reason=reason, weights_version=self.version
        )


class ToyEnv:
    """Answers a turn with the parity of what it has heard so far."""

    unwrapped = spec = None
    forkable = True

    def __init__(self) -> None:
        self._heard = 0

    def reset(self, **_: Any) -> tuple[Any, ...]:
        self._heard = 0
        return "", {}

    def step(self, text: str) -> tuple[Any, ...]:
        self._heard += sum(map(int, text.split()))
        return (OBSERVATION + self._heard % 2,)

    def snapshot(self) -> bytes:
        return bytes([self._heard])

    def restore(self, state: bytes) -> None:
        self._heard = state[0]


def versions(p: Policy, shown: Tokens, count: int) -> list[Policy]:
    """The policy before an update and after each of ``count``: all learn from what was shown."""
    found = [p]
    while len(found) <= count:
        found.append(learnt(found[-1], shown))
    return found


def sampled(coins: Coins, p: Policy, prompt: Tokens, length: int, seed: int) -> Tokens:
    """Plain seeded decoding."""
    said: Tokens = ()
    while len(said) < length:
        said += (coins.draw(p(prompt + said), seed, len(said)),)
    return said


def turn_law(p: Policy, length: int, moments: Sequence[int], broken: str = "") -> tuple[Law, Law]:
    """Joint distribution of a turn that is trained on and of one that each update interrupts, and what it has to be.

    ``keep``: its tokens are kept without a look. ``anew``: fresh noise behind the first that is not kept.
    ``trained``: it has the noise of the turn that is trained on.
    """
    seed = SHOWN if broken == "trained" else OWN

    def run(choose: Choose) -> Tokens:
        coins = Coins(choose)
        shown = sampled(coins, p, (), length, SHOWN)
        engine = ToyEngine(coins, versions(p, shown, len(moments)), moments, broken)
        how = OnResume.KEEP if broken == "keep" else OnResume.TURN
        turns = InterruptedTurns(engine, how, ResumeCounts(), wait=engine.update)
        request = TurnRequest((), Sampling(max_tokens=length, seed=seed))
        turn = _LOOP.run_until_complete(turns.generate(request))
        if not broken and turn.token_ids != sampled(coins, engine.policy, (), length, seed):
            raise AssertionError(f"the turn is {turn.token_ids}, not what plain decoding by its policy says")
        return (*shown, turn.weights_version, *turn.token_ids)

    def claimed(choose: Choose) -> Tokens:
        shown = finish(choose, p, (), length)
        # A turn that ends before an update has the version before it: which one does not depend on its tokens.
        version = _versions_reached(length, moments)
        return (*shown, version, *finish(choose, versions(p, shown, version)[-1], (), length))

    return outcomes(run), outcomes(claimed)


def _versions_reached(length: int, moments: Sequence[int]) -> int:
    drawn, done = 0, 0
    for moment in moments:
        if moment - drawn >= length:
            break
        drawn, done = max(drawn, moment), done + 1
    return done


def episode_law(p: Policy, moments: Sequence[int], broken: str = "") -> tuple[Law, Law]:
    """The same of an episode of two turns of two tokens with an observation between, trained on after all updates.

    ``keep``, ``anew``, ``trained``: as in ``turn_law``. ``unjudged``: an episode that has ended, and the turns before
    an interrupted one, are not verified again.
    """
    seed = SHOWN if broken == "trained" else OWN

    def run(choose: Choose) -> Tokens:
        coins = Coins(choose)
        shown = sampled(coins, p, (), 2, derive_seed(SHOWN, 0))
        engine = ToyEngine(coins, versions(p, shown, len(moments)), moments, broken)
        play = (
            _interrupted_group(engine, seed)
            if broken not in ("keep", "unjudged")
            else _interrupted(engine, seed, broken)
        )
        said = _LOOP.run_until_complete(play)
        if not broken and said != _dialogue(lambda at, n: sampled(coins, engine.policy, at, 2, derive_seed(seed, n))):
            raise AssertionError(f"the episode is {said}, not what plain decoding by its policy says")
        return shown + said

    def claimed(choose: Choose) -> Tokens:
        shown = finish(choose, p, (), 2)
        new = versions(p, shown, len(moments))[-1]
        return shown + _dialogue(lambda at, _: finish(choose, new, at, len(at) + 2)[len(at) :])

    return outcomes(run), outcomes(claimed)


def _dialogue(turn: Callable[[Tokens, int], Tokens]) -> Tokens:
    first = turn((), 0)
    state = (*first, OBSERVATION + sum(first) % 2)
    return state + turn(state, 1)


async def _roll(env: Any, engine: Any, seed: int) -> Episode:
    """The loop of ``rollout``, for tokens without a text."""
    env.reset()
    prompt: Tokens = ()
    turns = []
    for number in range(2):
        request = TurnRequest(prompt, Sampling(max_tokens=2, seed=derive_seed(seed, number)))
        said = await engine.generate(request)
        turns.append(Turn(prompt_ids=prompt, completion=said, text=" ".join(map(str, said.token_ids))))
        prompt += (*said.token_ids, *env.step(turns[-1].text))
    return Episode(env_id="toy", task=None, seed=seed, messages=(), turns=tuple(turns), stop_reason=StopReason.DONE)


async def _interrupted_group(engine: ToyEngine, seed: int) -> Tokens:
    newest = Newest()
    env: Any = ToyEnv()
    one = InterruptedEpisode(
        engine, RecordedEnv(env), lambda env, turns: _roll(env, turns, seed), newest, wait=engine.update
    )
    episode = await one.play()
    while engine._moments:  # the rest of the updates come while it waits to be trained on
        engine._drawn = max(engine._drawn, engine._moments[0])
        await engine.update()
        newest.see(engine.version)
        episode = await one.play()
    return _said(episode)


async def _interrupted(engine: ToyEngine, seed: int, broken: str) -> Tokens:
    how = OnResume.KEEP if broken == "keep" else OnResume.TURN
    return _said(await _roll(ToyEnv(), InterruptedTurns(engine, how, ResumeCounts(), wait=engine.update), seed))


def _said(episode: Episode) -> Tokens:
    last = episode.turns[-1]
    return tuple(last.prompt_ids) + last.completion.token_ids


def order_law(p: Policy, broken: str = "") -> tuple[Law, Law]:
    """Joint distribution of two steps of a training whose rows are sampled side by side, a token each in turn.

    Token 0 ends a row, of two tokens at most. The row that was submitted first is trained on first, the other one by
    the policy that has learnt from it. ``finished``: the row that ends first is.
    """
    how = Sampling(max_tokens=2, stop_token_ids=(0,))

    def run(choose: Choose) -> Tokens:
        coins = Coins(choose)
        seeds = [1, 2]
        rows = [_ended(sampled(coins, p, (), 2, seed)) for seed in seeds]
        first = 1 if broken == "finished" and len(rows[1]) < len(rows[0]) else 0
        shown, other = rows[first], 1 - first
        # The other one was begun: it has as many tokens as the first has, and is interrupted there.
        engine = ToyEngine(coins, [p, learnt(p, shown)], [len(shown)])
        turns = InterruptedTurns(engine, OnResume.TURN, ResumeCounts(), wait=engine.update)
        request = TurnRequest((), replace(how, seed=seeds[other]))
        turn = _LOOP.run_until_complete(turns.generate(request))
        if engine.version == 0:  # it has ended, and waits: it is verified again
            engine._drawn = max(engine._drawn, len(shown))
            _LOOP.run_until_complete(engine.update())
            turn = _LOOP.run_until_complete(turns.generate(replace(request, draft=turn.token_ids)))
        return (*shown, -1, *turn.token_ids)

    def claimed(choose: Choose) -> Tokens:
        shown = _ended(finish(choose, p, (), 2))
        return (*shown, -1, *_ended(finish(choose, learnt(p, shown), (), 2)))

    return outcomes(run), outcomes(claimed)


def _ended(tokens: Tokens) -> Tokens:
    return tokens[: tokens.index(0) + 1] if 0 in tokens else tokens
