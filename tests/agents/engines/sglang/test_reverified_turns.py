import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_sglang import beside, prepare
from engine_checks import CONTEXT, PROMPT, state
from policy_law import PolicyLaw

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.agents.engines.request_wire import GIVEN
from turntree.agents.engines.sglang import answers
from turntree.agents.engines.sglang.config import SglangEngineConfig
from turntree.agents.engines.sglang.dialect import SglangDialect
from turntree.agents.engines.sglang.engine import SglangEngine
from turntree.agents.engines.sglang.settings import SglangSettings
from turntree.spec_tree.rules.transforms import Transforms, distribution

pytestmark = pytest.mark.sglang

LENGTH = 60
"""Of a turn; a step verifies 8 tokens."""
CHUNKS = ["SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK", "SGLANG_LOGITS_PROCESSER_CHUNK_SIZE"]
"""Variables that let logits be computed in parts."""
PROMPTS = [PROMPT, PROMPT[:3], (*PROMPT, *range(1, 20))]
LAWS: list[dict[str, float]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.3, "top_p": 0.8},
    {"temperature": 1.3, "top_k": 6},
    {"min_p": 0.1},
]


@pytest.fixture(scope="module")
def folder(small_llama: Path) -> Path:
    return small_llama


@pytest.fixture(scope="module", params=[8, pytest.param(0, marks=pytest.mark.release)], ids=["drafting", "plain"])
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[SglangEngine]:
    prepare()
    config = SglangEngineConfig(
        max_batch=48,
        max_context=CONTEXT,
        dtype="float32",
        draft_tokens=request.param,
        speculation=SglangSettings(adaptive=False, min_probability=0.02),
        seed=1,
        engine_args={**beside("dtype", "max_running_requests", "random_seed", "log_level"), "chunked_prefill_size": 48},
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in CHUNKS:
            patch.setenv(name, "16" if name.endswith("SIZE") else "1")
        made = SglangEngine(folder, config=config)
    with made:
        yield made


def asked(prompt: Sequence[int], sampling: Sampling, draft: Sequence[int] = ()) -> TurnRequest:
    return TurnRequest(prompt, sampling, state=state(f"verified again {len(prompt)}"), draft=draft)


def drafts_of(turn: Sequence[int]) -> list[list[int]]:
    right = list(turn)
    wrong = [[*right[:at], (right[at] + 1) % 32, *right[at + 1 :]] for at in (0, 1, 30, len(right) - 1)]
    return [right, *wrong, right[:40], [*right, *right[:20]], [7] * len(right)]


def stored(engine: SglangEngine) -> tuple[int, int, int]:
    engine.reset_prefix_cache()
    figures = engine.figures()
    return figures["forest_rollouts"], figures["forest_tokens"], figures["forest_live"]


def same(turn: Completion, plain: Completion) -> bool:
    return turn.token_ids == plain.token_ids and np.allclose(turn.logprobs, plain.logprobs, atol=1e-4)


@pytest.mark.parametrize("how", LAWS, ids=str)
async def test_a_turn_is_the_same_whatever_draft_of_it_is_reverified(engine: Any, policy: PolicyLaw, how: Any) -> None:
    seed = LAWS.index(how)
    prompt, sampling = PROMPTS[seed % len(PROMPTS)], Sampling(max_tokens=LENGTH, seed=seed, **how)
    plain = await engine.generate(asked(prompt, sampling))
    assert list(plain.token_ids) == policy.seeded(prompt, LENGTH, seed, **how)
    drafts = drafts_of(plain.token_ids)
    reverified = await asyncio.gather(*(engine.generate(asked(prompt, sampling, draft)) for draft in drafts))
    assert all(same(turn, plain) for turn in reverified)
    assert {turn.finish_reason for turn in reverified} == {FinishReason.LENGTH}
    assert {len(turn.accepted) for turn in reverified} == {LENGTH}
    p = distribution(policy.along(prompt, plain.token_ids)[:-1], Transforms(**how))
    drawn = np.log(p[range(LENGTH), list(plain.token_ids)])
    assert reverified[0].behaviour_logprobs == pytest.approx(drawn, abs=5e-4)


async def test_a_turn_that_is_reproduced_whole_takes_two_passes_at_most(engine: Any) -> None:
    for seed, prompt in enumerate(PROMPTS):
        sampling = Sampling(max_tokens=LENGTH, seed=seed)
        plain = await engine.generate(asked(prompt, sampling))
        before = 1 + max(plain.token_ids.index(token) for token in plain.token_ids)
        assert before > 2 * 8
        stop = plain.token_ids[before - 1]
        ended = replace(sampling, stop_token_ids=(stop,))
        for how, draft, length in ((sampling, plain.token_ids, LENGTH), (ended, plain.token_ids[:before], before)):
            turn = await engine.generate(asked(prompt, how, draft))
            assert turn.token_ids == plain.token_ids[:length]
            assert turn.draft.verify_steps == 1
            assert turn.draft.accepted == len(draft)
        short = await engine.generate(asked(prompt, sampling, plain.token_ids[:-1]))
        assert same(short, plain)
        assert short.draft.verify_steps == 2


async def test_a_stop_token_ends_the_turn_wherever_the_draft_goes_on(engine: Any) -> None:
    for seed in range(2):
        sampling = Sampling(max_tokens=LENGTH, seed=seed)
        free = await engine.generate(asked(PROMPT, sampling))
        for stop in {free.token_ids[n] for n in (0, 12, 33)}:
            how = replace(sampling, stop_token_ids=(stop,))
            plain = await engine.generate(asked(PROMPT, how))
            assert plain.finish_reason is FinishReason.STOP
            for draft in (free.token_ids, [stop] * 20, [*free.token_ids[:10], stop, *free.token_ids[10:]]):
                turn = await engine.generate(asked(PROMPT, how, draft))
                assert same(turn, plain)
                assert turn.finish_reason is FinishReason.STOP


async def test_a_draft_that_would_fill_the_context_is_reverified_as_far_as_it_fits(engine: Any) -> None:
    prompt, sampling = [1 + n % 30 for n in range(CONTEXT - 30)], Sampling(max_tokens=2 * CONTEXT, seed=4)
    plain = await engine.generate(asked(prompt, sampling))
    assert len(plain.token_ids) == 30
    for draft in (plain.token_ids, [*plain.token_ids, *range(1, 30)]):
        turn = await engine.generate(asked(prompt, sampling, draft))
        assert same(turn, plain)
        assert turn.finish_reason is FinishReason.LENGTH
        assert turn.draft.verify_steps == 2  # the last place is kept for a sampled token


async def test_the_store_learns_a_turn_once_and_nothing_of_a_wrong_draft(engine: Any, policy: PolicyLaw) -> None:
    if not engine.config.draft_tokens:
        pytest.skip("without drafts there is no store")
    right = policy.seeded(PROMPT, LENGTH, 11)
    ending = max(set(right), key=right.index)
    before = right.index(ending) + 1
    sampling = Sampling(max_tokens=LENGTH, seed=11)
    asked = {
        "length": (sampling, right),
        "stop": (replace(sampling, stop_token_ids=(ending,)), right[:before]),
        "last": (sampling, right[:-1]),
        "rest": (sampling, right[:40]),
        "wrong": (sampling, [*right[:20], *([(right[20] + 1) % 32] * 40)]),
    }
    for name, (how, draft) in asked.items():
        rollouts, tokens, _ = await asyncio.to_thread(stored, engine)
        turn = await engine.generate(TurnRequest(PROMPT, how, state=state(f"learns {name}"), draft=draft))
        length = before if name == "stop" else LENGTH
        assert list(turn.token_ids) == right[:length]
        assert await asyncio.to_thread(stored, engine) == (rollouts + 1, tokens + length, 0)
        again = await engine.generate(TurnRequest(PROMPT, how, state=state(f"learns {name}")))
        assert again.token_ids == turn.token_ids
        assert again.draft.verify_steps < length / 3


@pytest.mark.parametrize("fault", ["noise of the position before", "the draft is believed"])
async def test_a_reverification_that_does_not_draw_as_decoding_does_is_noticed(engine, monkeypatch, fault):
    """Control of the tests above."""
    sampling = Sampling(max_tokens=LENGTH, seed=2)
    plain = await engine.generate(asked(PROMPT, sampling))
    right, late = drafts_of(plain.token_ids)[0], drafts_of(plain.token_ids)[3]
    if fault == "the draft is believed":
        believed = lambda reverified, *given: replace(reverified(*given), token_ids=tuple(late))  # noqa: E731
        monkeypatch.setattr(answers, "reverified", partial(believed, answers.reverified))
        turn = await engine.generate(asked(PROMPT, sampling, late))
        assert turn.token_ids[:30] == plain.token_ids[:30]
    else:
        reverify = SglangDialect.reverify

        def earlier(dialect: SglangDialect, request: TurnRequest) -> dict[str, Any]:
            arguments = reverify(dialect, request)
            arguments["sampling_params"]["custom_params"][GIVEN] -= 1
            return arguments

        monkeypatch.setattr(SglangDialect, "reverify", earlier)
        turn = await engine.generate(asked(PROMPT, sampling, right))
    assert not same(turn, plain)
