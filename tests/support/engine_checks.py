"""Tests that every engine must pass; an engine's test file subclasses them.

The test file provides the fixtures ``engine`` and ``policy``, a ``PolicyLaw`` of the engine's model, which is a
``save_tiny_llama`` with a context of ``CONTEXT`` tokens. Expected values come from formulas and the model's logits.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from machine_speed import soon
from policy_law import PolicyLaw, chi_square

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, ScoringEngine, TurnRequest
from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode
from turntree.agents.turn_drafts.prefix_reuse import PrefixReuse
from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.transforms import Transforms, distribution

CONTEXT = 160
ATTEMPTS = 30  #: tries to catch a turn before it ends, which a busy machine makes hard
PROMPT = tuple(1 + n % 30 for n in range(35))  #: longer than one of vLLM's blocks of keys and values
#: drawn in one batch, so that mixing up two requests' transforms is noticed
LAWS: tuple[dict[str, float], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 1.3, "top_k": 6},
)


def state(name: str) -> DialogueState:
    """Return a state of its own environment, so that nothing sampled elsewhere is drafted."""
    return DialogueState(exact=crc32(name.encode()), task=name, env=name)


def steps(turns: list[Completion]) -> int:
    return sum(turn.draft.verify_steps for turn in turns)


@contextmanager
def new_weights(engine: Any, policy: PolicyLaw, new: dict[str, Any]) -> Iterator[PolicyLaw]:
    """Give the engine new weights until the end of the block and yield the reference with these weights."""
    before = policy.weights()
    engine.update_weights(list({**before, **new}.items()))
    try:
        yield policy.changed(new)
    finally:
        engine.update_weights(list(before.items()))


class EngineChecks:
    context = CONTEXT
    end: int | None = 31  #: the model's end token, if it is likely enough to occur
    laws: tuple[dict[str, float], ...] = LAWS
    exactly = 2e-4  #: tolerance of log-probabilities against the float64 reference

    def test_the_reference_hears_where_a_token_stands(self, policy: PolicyLaw) -> None:
        """Without this, no test would notice drafts that are verified one position off."""
        positions = np.arange(6)
        logits = policy.logits([PROMPT[:6]] * 2, [positions.tolist(), (positions + (positions > 3)).tolist()])
        right, wrong = (distribution(row, Transforms()) for row in logits)
        assert abs(right - wrong).sum() / 2 > 0.03

    async def test_greedy_turns_are_the_models_most_probable_tokens(self, engine: Any, policy: PolicyLaw) -> None:
        assert isinstance(engine, ScoringEngine)
        prompts = [(*PROMPT, n) for n in range(4)]
        wanted = [policy.greedy(prompt, 16) for prompt in prompts]
        greedy = Sampling(temperature=0, max_tokens=16, top_logprobs=2)
        for _ in range(2):
            turns = await asyncio.gather(
                *(engine.generate(TurnRequest(p, greedy, state=state("greedy"))) for p in prompts)
            )
            assert [list(turn.token_ids) for turn in turns] == wanted
            for prompt, turn in zip(prompts, turns, strict=True):
                assert turn.logprobs == pytest.approx(policy.logprobs(prompt, turn.token_ids), abs=self.exactly)
                assert turn.top.ids[:, 0].tolist() == list(turn.token_ids)
                assert turn.finish_reason is FinishReason.LENGTH

    async def test_a_seed_says_what_the_noise_says_alone_in_a_batch_drafted_replayed_and_misled(self, engine, policy):
        """The last seed is one that a JSON reader of doubles would round."""
        seeds, here = [*range(3), 2**63 + 7], state("seeds")
        wanted = [policy.seeded(PROMPT, 16, seed) for seed in seeds]
        how = [Sampling(max_tokens=16, seed=seed) for seed in seeds]
        alone = [await engine.generate(TurnRequest(PROMPT, sampling, state=here)) for sampling in how]
        others = await asyncio.gather(
            *(engine.generate(TurnRequest(PROMPT, sampling, state=here)) for sampling in how),
            *(
                engine.generate(TurnRequest(PROMPT, sampling, draft=turn))
                for sampling, turn in zip(how, wanted, strict=True)
            ),
            *(engine.generate(TurnRequest(PROMPT, sampling, draft=[7] * 16)) for sampling in how),
        )
        assert [list(turn.token_ids) for turn in (*alone, *others)] == wanted * 4
        for turn in (*alone, *others):
            assert turn.logprobs == pytest.approx(policy.logprobs(PROMPT, turn.token_ids), abs=self.exactly)
        assert len({turn.token_ids for turn in alone}) > 2  # control: seeds do differ

    async def test_a_turn_is_drawn_by_its_law_and_records_it(self, engine: Any, policy: PolicyLaw) -> None:
        for asked in self.laws:
            turn = await engine.generate(TurnRequest(PROMPT, Sampling(max_tokens=8, seed=5, top_logprobs=3, **asked)))
            assert list(turn.token_ids) == policy.seeded(PROMPT, 8, 5, **asked)
            p = distribution(policy.along(PROMPT, turn.token_ids)[:-1], Transforms(**asked))
            drawn = np.log(p[range(8), list(turn.token_ids)])
            assert turn.behaviour_logprobs == pytest.approx(drawn, abs=5e-4)
            np.testing.assert_allclose(np.exp(turn.top.logprobs), -np.sort(-p)[:, :3], atol=5e-4)

    async def test_given_tokens_are_scored_as_the_model_says(self, engine: Any, policy: PolicyLaw) -> None:
        tokens = (5, 6, 7, 8, 9)
        p = distribution(policy.along(PROMPT, tokens), Transforms())
        scores = await engine.score(PROMPT, tokens, Sampling(), top=4)
        assert scores.logprobs == pytest.approx(policy.logprobs(PROMPT, tokens), abs=self.exactly)
        assert scores.top.ids.tolist() == (-p).argsort(-1)[:, :4].tolist()
        assert scores.top.logprobs == pytest.approx(np.log(-np.sort(-p)[:, :4]), abs=self.exactly)

    async def test_a_turn_ends_at_its_own_stop_tokens_alone(self, engine: Any) -> None:
        """Not at the model's end token; the second time, the token that ends the turn is drafted."""
        sampling = [Sampling(max_tokens=40, seed=seed) for seed in range(6)]
        turns = await asyncio.gather(
            *(engine.generate(TurnRequest(PROMPT, how, state=state("free"))) for how in sampling)
        )
        assert all(turn.finish_reason is FinishReason.LENGTH and len(turn.token_ids) == 40 for turn in turns)
        ends = [] if self.end is None else [self.end]
        assert all(any(end in turn.token_ids[:-1] for turn in turns) for end in ends)
        for stop in (*ends, turns[0].token_ids[9]):
            hows = [replace(how, stop_token_ids=(stop,)) for how in sampling]
            again = await asyncio.gather(
                *(engine.generate(TurnRequest(PROMPT, how, state=state("free"))) for how in hows)
            )
            for stopped, turn in zip(again, turns, strict=True):
                ended = stop in turn.token_ids
                assert stopped.token_ids == turn.token_ids[: turn.token_ids.index(stop) + 1 if ended else 40]
                assert stopped.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)

    async def test_the_next_turn_finds_the_keys_and_values_of_the_last(self, engine: Any) -> None:
        prompt = tuple(1 + (11 * n + n // 7) % 30 for n in range(64))
        turn = await engine.generate(TurnRequest(prompt, Sampling(max_tokens=12, seed=1)))
        following = await engine.generate(TurnRequest((*prompt, *turn.token_ids, 4), Sampling(max_tokens=4, seed=1)))
        assert following.cached_tokens >= 64

    async def test_a_prompt_that_does_not_fit_is_refused(self, engine: Any) -> None:
        with pytest.raises((ValueError, RuntimeError), match=r"max_context is|context length"):
            await engine.generate(TurnRequest((1,) * (self.context + 1), Sampling(max_tokens=4)))


class OwnEngineChecks(EngineChecks):
    """Tests for engines in or beside this process, which count and accept weights."""

    def held(self, engine: Any) -> tuple[int, int]:
        raise NotImplementedError

    async def settled(self, engine: Any) -> tuple[int, int]:
        # Waits until every ended turn is stored or gone; each call adds a turn of its own.
        await engine.generate(TurnRequest(PROMPT, Sampling(max_tokens=4), state=state("between")))
        await asyncio.to_thread(engine.reset_prefix_cache)
        return await asyncio.to_thread(self.held, engine)

    async def test_turns_that_were_said_before_take_fewer_steps(self, engine: Any) -> None:
        """Also after the cache is emptied, and where the caller drafts the turns."""
        sampling, said = [Sampling(max_tokens=24, seed=seed) for seed in range(6)], []
        for here in ("first", "first", "elsewhere"):
            drafts = [turn.token_ids for turn in said[0]] if here == "elsewhere" else [()] * 6
            asked = zip(sampling, drafts, strict=True)
            turns = [
                await engine.generate(TurnRequest(PROMPT, how, state=state(here), draft=draft)) for how, draft in asked
            ]
            said.append(turns)
            await asyncio.to_thread(engine.reset_prefix_cache)
        assert [[turn.token_ids for turn in turns] for turns in said] == [[turn.token_ids for turn in said[0]]] * 3
        for turns in said[1:]:
            assert steps(turns) < 24 * 6 / 2
            assert sum(turn.draft.accepted for turn in turns) > 24 * 6 / 2

    @pytest.mark.parametrize("count", [400, pytest.param(1000, marks=pytest.mark.release)])
    async def test_unseeded_turns_follow_the_policys_law(self, engine: Any, policy: PolicyLaw, count: int) -> None:
        given = [Sampling(max_tokens=4, **asked) for asked in self.laws[:4] for _ in range(count)]
        order = np.random.default_rng(0).permutation(len(given)).tolist()
        said = await asyncio.gather(
            *(engine.generate(TurnRequest(PROMPT, given[i], state=state(f"drawn {count}"))) for i in order)
        )
        drawn = [Counter[tuple[int, ...]]() for _ in self.laws[:4]]
        for i, turn in zip(order, said, strict=True):
            drawn[i // count][turn.token_ids[:3]] += 1
        exact = [policy.turns(PROMPT, 3, **asked) for asked in self.laws[:4]]
        for seen, expected in zip(drawn, exact, strict=True):
            assert chi_square(seen, expected) > 1e-6
        assert chi_square(drawn[0], exact[1]) < 1e-9  # control: another temperature
        assert sum(turn.draft.drafted for turn in said) > 2 * count
        assert sum(turn.draft.accepted for turn in said) > count

    async def test_turns_that_join_and_leave_say_what_their_seeds_say(self, engine: Any, policy: PolicyLaw) -> None:
        whole = [policy.seeded(PROMPT[: 3 + n % 4], 32, n) for n in range(12)]
        lengths, stops = [3 + 7 * n % 30 for n in range(60)], [n % 5 for n in range(60)]

        async def later(n: int) -> Completion:
            await asyncio.sleep(0.01 * (n % 40))
            sampling = Sampling(max_tokens=lengths[n], seed=n % 12, stop_token_ids=(stops[n],))
            return await engine.generate(TurnRequest(PROMPT[: 3 + n % 4], sampling, state=state(f"crowd {n % 4}")))

        turns = await asyncio.gather(*(later(n) for n in range(60)))
        for n, turn in enumerate(turns):
            wanted = whole[n % 12][: lengths[n]]
            ended = stops[n] in wanted
            assert list(turn.token_ids) == (wanted[: wanted.index(stops[n]) + 1] if ended else wanted)
            assert turn.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
            right = policy.logprobs(PROMPT[: 3 + n % 4], turn.token_ids)
            assert turn.logprobs == pytest.approx(right, abs=5e-4)
        assert sum(len(turn.token_ids) for turn in turns) / steps(turns) > 1.2
        assert (await self.settled(engine))[1] == 0

    @pytest.mark.parametrize("room", [pytest.param(100, marks=pytest.mark.release), 6, 1])
    async def test_turns_fill_the_context_to_its_last_place_and_others_are_drafted_beside(self, engine, policy, room):
        prompt, greedy = [1 + n % 30 for n in range(CONTEXT - room)], Sampling(temperature=0, max_tokens=2 * CONTEXT)
        wanted = policy.greedy(prompt, room)
        for drafted in (False, True):
            turn, other = await asyncio.gather(
                engine.generate(TurnRequest(prompt, greedy, state=state(f"room {room}"))),
                engine.generate(TurnRequest(PROMPT, Sampling(max_tokens=24, seed=3), state=state(f"beside {room}"))),
            )
            assert list(turn.token_ids) == wanted
            assert turn.finish_reason is FinishReason.LENGTH
            assert turn.draft.accepted > 0 or not drafted or room == 1
            assert other.draft.verify_steps < 12 or not drafted

    async def test_a_caller_that_gives_up_frees_the_engine_and_leaves_no_turn(self, engine: Any) -> None:
        for attempt in range(ATTEMPTS):
            finished, live = await self.settled(engine)
            assert live == 0
            asked = engine.generate(
                TurnRequest(PROMPT, Sampling(max_tokens=CONTEXT), state=state(f"given up {attempt}"))
            )
            waiting = asyncio.create_task(asked)
            await soon(lambda waiting=waiting: engine.live or waiting.done(), 120)
            waiting.cancel()
            await asyncio.wait([waiting])
            await soon(lambda: not engine.live, 120)
            if waiting.cancelled() and await self.settled(engine) == (finished + 1, live):
                return
        pytest.fail("no turn was given up before its end, or what was given up is stored")

    async def test_all_turns_can_be_aborted_keep_what_they_have_and_are_not_stored(self, engine: Any) -> None:
        for attempt in range(ATTEMPTS):
            finished, live = await self.settled(engine)
            here = state(f"cut {attempt}")
            asked = [engine.generate(TurnRequest(PROMPT, Sampling(max_tokens=CONTEXT), state=here)) for _ in range(8)]
            tasks = [asyncio.create_task(turn) for turn in asked]
            await soon(lambda tasks=tasks: engine.live >= 8 or any(task.done() for task in tasks), 120)
            aborted = await asyncio.to_thread(engine.abort_all)
            turns = await asyncio.gather(*tasks)
            if {turn.finish_reason for turn in turns} == {FinishReason.ABORT}:
                break
        assert [turn.finish_reason for turn in turns] == [FinishReason.ABORT] * 8
        assert aborted == 8
        assert all(len(turn.token_ids) == len(turn.logprobs) < CONTEXT - len(PROMPT) for turn in turns)
        assert await self.settled(engine) == (finished + 1, live)

    async def test_a_given_turn_is_replayed_in_two_passes_at_most(self, engine: Any, policy: PolicyLaw) -> None:
        """Whole, wrong from some position on, cut by the limit or a stop token, and up to the context's end."""
        for number, asked in enumerate(self.laws[::2]):
            seed, here = 300 + number, state(f"given {number}")
            turn = policy.seeded(PROMPT, 40, seed, **asked)
            how = Sampling(max_tokens=40, seed=seed, **asked)
            whole = await engine.generate(TurnRequest(PROMPT, how, state=here, draft=turn))
            again = await engine.generate(TurnRequest(PROMPT, how, draft=turn))  # its keys and values are cached now
            for said in (whole, again):
                assert list(said.token_ids) == turn
                assert said.draft.verify_steps <= 2
                assert said.finish_reason is FinishReason.LENGTH
            wrong = [*turn[:17], (turn[17] + 1) % 31, *turn[18:]]
            misled = await engine.generate(TurnRequest(PROMPT, how, draft=wrong))
            short = await engine.generate(TurnRequest(PROMPT, replace(how, max_tokens=25), draft=turn))
            ended = await engine.generate(TurnRequest(PROMPT, replace(how, stop_token_ids=(turn[20],)), draft=turn))
            stop = turn.index(turn[20]) + 1
            assert [list(each.token_ids) for each in (misled, short, ended)] == [turn, turn[:25], turn[:stop]]
            assert ended.finish_reason is FinishReason.STOP
            plain = await engine.generate(TurnRequest(PROMPT, how))
            for each in (whole, misled):
                assert each.logprobs == pytest.approx(plain.logprobs, abs=self.exactly)
                if each.behaviour_logprobs and plain.behaviour_logprobs:  # not after cuts, from SGLang's decoding
                    assert each.behaviour_logprobs == pytest.approx(plain.behaviour_logprobs, abs=self.exactly)
        prompt = [1 + n % 30 for n in range(CONTEXT - 20)]
        full = policy.seeded(prompt, 20, 7)
        said = await engine.generate(TurnRequest(prompt, Sampling(max_tokens=40, seed=7), draft=[*full, 1, 2]))
        assert list(said.token_ids) == full[: len(said.token_ids)]
        assert len(said.token_ids) == len((await engine.generate(TurnRequest(prompt, Sampling(seed=7)))).token_ids)

    async def test_a_replayed_turn_is_stored_once_and_its_draft_is_not(self, engine: Any, policy: PolicyLaw) -> None:
        here, turn = state("given and kept"), policy.seeded(PROMPT, 40, 400)
        before = await self.settled(engine)
        wrong = [*turn[:17], (turn[17] + 1) % 31, *turn[18:]]
        await engine.generate(TurnRequest(PROMPT, Sampling(max_tokens=40, seed=400), state=here, draft=wrong))
        after = await self.settled(engine)
        assert (after[0] - before[0], after[1]) == (2, before[1]), "this turn, and the one of the count itself"
        await engine.generate(TurnRequest(PROMPT, Sampling(max_tokens=40, seed=400), state=here, draft=turn))
        last = await self.settled(engine)
        assert last[0] - after[0] == 2, "a turn that ends in the pass that re-verified it is stored as well"
        drafted = await engine.generate(TurnRequest(PROMPT, Sampling(max_tokens=40, seed=400), state=here))
        assert list(drafted.token_ids) == turn
        assert drafted.draft.verify_steps < 20, "all of it is drafted from the store"

    async def test_exact_reuse_begins_a_turn_with_an_earlier_one(self, engine: Any, policy: PolicyLaw) -> None:
        reuse = PrefixReuse(
            engine, ReuseConfig(mode=ReuseMode.REJECTION_SAMPLING, top_k=32), vocabulary=engine.vocabulary, seed=1
        )
        prompts = [(*PROMPT, n) for n in range(4)]
        for _ in range(2):
            turns = await asyncio.gather(
                *(reuse.generate(TurnRequest(prompt, Sampling(max_tokens=10))) for prompt in prompts)
            )
            reuse.close_step(trained=False)
        # The policy did not change: its own ratio is 1, and all that was recorded stays.
        assert reuse.stats.drafted_turns == 4
        assert reuse.stats.reused == reuse.stats.offered == 40
        for prompt, turn in zip(prompts, turns, strict=True):
            assert set(turn.levels) == {"B"}
            assert turn.logprobs == pytest.approx(policy.logprobs(prompt, turn.token_ids), abs=1e-3)

    async def test_seeded_replay_goes_on_where_a_changed_policy_differs(self, engine: Any, policy: PolicyLaw) -> None:
        import torch

        noise = torch.Generator().manual_seed(0)
        new = {name: w + 0.003 * torch.randn(w.shape, generator=noise) for name, w in policy.weights().items()}
        reuse = PrefixReuse(engine, ReuseConfig(mode=ReuseMode.SAME_SEED), vocabulary=engine.vocabulary, seed=1)
        prompts, version = [(*PROMPT, n) for n in range(6)], engine.version
        sampling = [Sampling(max_tokens=12, seed=seed) for seed in range(6)]

        async def turns() -> list[Completion]:
            asked = zip(prompts, sampling, strict=True)
            return await asyncio.gather(*(reuse.generate(TurnRequest(prompt, how)) for prompt, how in asked))

        await turns()
        held = self.held(engine)[0]
        with new_weights(engine, policy, new) as changed:
            assert engine.version == version + 1
            assert self.held(engine)[0] >= held > 0, "drafts are kept"
            reuse.close_step()
            fresh = await engine.generate(TurnRequest(prompts[1], sampling[0]))
            replayed = await turns()
        assert fresh.cached_tokens == 0
        assert 0 < reuse.stats.reused < reuse.stats.offered
        for seed, (prompt, turn) in enumerate(zip(prompts, replayed, strict=True)):
            assert list(turn.token_ids) == changed.seeded(prompt, 12, seed)
            assert turn.logprobs == pytest.approx(changed.logprobs(prompt, turn.token_ids), abs=self.exactly)
            assert turn.weights_version == version + 1
        again = await engine.generate(TurnRequest(prompts[0], sampling[0]))
        assert list(again.token_ids) == policy.seeded(prompts[0], 12, 0)
        assert again.weights_version == version + 2
