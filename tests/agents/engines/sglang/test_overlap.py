"""SGLang 0.5.23 with overlap: the scheduler starts a pass before its requests know what the last one said."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from policy_law import PolicyLaw, chi_square
from sglang_engines import start
from tiny_llama import save_tiny_llama

from turntree.agents.engines.protocol import FinishReason, Sampling
from turntree.agents.engines.sglang import compat
from turntree.spec_tree import DialogueState
from turntree.spec_tree.transforms import Transforms, law

pytestmark = pytest.mark.sglang

PROMPT = (1, 2, 3, 4, 5, 6)
TURNS = 120
LONGEST = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[Any]:
    pytest.importorskip("sglang", reason="needs SGLang; see make test-sglang")
    if not compat.is_v2():
        pytest.skip("SGLang 0.5.12 has no overlap with drafts of a plugin")
    with start(model, max_batch=48, disable_overlap_schedule=False) as made:
        yield made


def state(number: int) -> DialogueState:
    return DialogueState(exact=2000 + number, task="overlap", env=str(number))


async def test_turns_that_join_and_leave_say_what_their_seeds_say(engine, model):
    """Prompts come in between the passes of the others, whose requests know then what they said last."""
    policy = PolicyLaw(model)
    whole = [
        policy.seeded(PROMPT[: 3 + n % 4], LONGEST, n, lambda logits: law(logits, Transforms())) for n in range(20)
    ]
    lengths, stops = [3 + 7 * n % 30 for n in range(TURNS)], [n % 5 for n in range(TURNS)]

    async def later(n: int) -> Any:
        await asyncio.sleep(0.01 * (n % 40))
        sampling = Sampling(max_tokens=lengths[n], seed=n % 20, stop_token_ids=(stops[n],))
        return await engine.generate(PROMPT[: 3 + n % 4], sampling, state=state(n % 4))

    turns = await asyncio.gather(*(later(n) for n in range(TURNS)))
    for n, turn in enumerate(turns):
        wanted = whole[n % 20][: lengths[n]]
        ended = stops[n] in wanted
        if ended:
            wanted = wanted[: wanted.index(stops[n]) + 1]
        assert list(turn.token_ids) == wanted
        assert turn.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
        assert turn.logprobs == pytest.approx(policy.logprobs(PROMPT[: 3 + n % 4], wanted), abs=5e-4)
    tokens, steps = sum(len(turn.token_ids) for turn in turns), sum(turn.draft.verify_steps for turn in turns)
    assert tokens / steps > 1.2


async def test_unseeded_turns_have_the_policys_law(engine, model):
    sampling = Sampling(max_tokens=3, top_k=3)
    turns = await asyncio.gather(*(engine.generate(PROMPT, sampling, state=state(50)) for _ in range(3000)))
    drawn = Counter(turn.token_ids for turn in turns)
    expected = PolicyLaw(model).turns(PROMPT, 3, lambda logits: law(logits, Transforms(top_k=3)))
    assert chi_square(drawn, expected) > 1e-4
    assert sum(turn.draft.accepted for turn in turns) > 300


async def test_turns_that_are_aborted_leave_nothing_behind(engine):
    many = [engine.generate(PROMPT, Sampling(max_tokens=150), state=state(60)) for _ in range(30)]
    gathered = asyncio.gather(*many)
    await asyncio.sleep(0.1)
    engine.abort_all()
    turns = await gathered
    assert {turn.finish_reason for turn in turns} == {FinishReason.ABORT}
    await asyncio.to_thread(engine.reset_prefix_cache)
    figures = await asyncio.to_thread(engine.figures)
    assert figures["forest_live"] == 0
