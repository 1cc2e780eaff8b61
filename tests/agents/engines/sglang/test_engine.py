import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import pytest
from cpu_sglang import CPU_ARGS, beside, flush, prepare
from engine_checks import ATTEMPTS, CONTEXT, LAWS, PROMPT, OwnEngineChecks, new_weights, state, steps
from machine_speed import soon
from policy_law import PolicyLaw, chi_square
from run_ahead_checks import LONG, RunAheadChecks, all_of, asked

from turntree.agents.engines.protocol import Sampling, TurnRequest
from turntree.agents.engines.request_wire import to_wire
from turntree.agents.engines.served.dialect import UnsupportedSampling
from turntree.agents.engines.server_client import free_port
from turntree.agents.engines.sglang.config import SglangEngineConfig
from turntree.agents.engines.sglang.dialect import PRIORITIES, SglangDialect
from turntree.agents.engines.sglang.engine import SglangEngine
from turntree.agents.engines.sglang.settings import SglangSettings
from turntree.agents.engines.sglang.worker.store_calls import call_store
from turntree.spec_tree import SpecForest

pytestmark = pytest.mark.sglang

GREEDY = Sampling(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def folder(small_llama: Path) -> Path:
    return small_llama


def start(folder: Path, **arguments: Any) -> SglangEngine:
    prepare()
    config = SglangEngineConfig(
        max_batch=32,
        max_context=CONTEXT,
        dtype="float32",
        draft_tokens=8,
        speculation=SglangSettings(adaptive=False, min_probability=0.02),
        seed=1,
        engine_args={**beside("dtype", "max_running_requests", "random_seed", "log_level"), **PRIORITIES, **arguments},
    )
    return SglangEngine(folder, config=config)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[SglangEngine]:
    with start(folder) as made:
        yield made


class TestSglang(OwnEngineChecks):
    laws = (*LAWS, {"min_p": 0.1}, {"top_k": 3}, {"top_k": 6, "top_p": 0.9})

    def held(self, engine: SglangEngine) -> tuple[int, int]:
        figures = engine.figures()
        return figures["forest_rollouts"], figures["forest_live"]

    async def test_the_store_takes_turns_from_outside_and_is_saved_and_restored(
        self, engine: SglangEngine, policy: PolicyLaw, tmp_path: Path
    ) -> None:
        def call(method: str, *args: Any) -> None:
            engine._thread.call(call_store(engine._engine.tokenizer_manager, method, *args))  # as verl's server does

        prompt, sampling, here = [9, 8, 7, 6, 4], Sampling(max_tokens=24, seed=8), state("from outside")
        turn, before = policy.seeded(prompt, 24, 8), self.held(engine)[0]
        call("insert", [to_wire(here)], [turn])
        for beyond in (32, 2**31 - 1):  # the model knows 32 tokens
            with pytest.raises(OSError, match="could not insert; see the log of SGLang"):
                call("insert", [to_wire(here)] * 2, [turn, [*turn[:3], beyond]])
        assert self.held(engine)[0] == before + 1
        found = await engine.generate(TurnRequest(prompt, sampling, state=here))
        assert list(found.token_ids) == turn
        assert found.draft.verify_steps <= 5
        engine.reset_prefix_cache()
        call("save", str(tmp_path / "store"))
        assert SpecForest.load(tmp_path / "store").finished([here]) == [2]
        held = self.held(engine)
        await engine.generate(TurnRequest(prompt, replace(sampling, seed=9), state=here))
        engine.reset_prefix_cache()
        assert self.held(engine) != held
        call("restore", str(tmp_path / "store"))
        assert self.held(engine) == held
        with pytest.raises(OSError, match="could not restore; see the log of SGLang"):
            call("restore", str(tmp_path / "no store"))
        assert self.held(engine) == held


def test_the_repairs_for_the_cpu_leave_the_process_its_torch(engine: SglangEngine) -> None:
    """transformers creates a tensor to find out whether a model is only being laid out."""
    import torch

    with torch.device("meta"):
        assert torch.tensor([]).is_meta
    assert isinstance(torch.tensor, BuiltinFunctionType)


def test_the_processes_meet_at_a_port_that_no_connection_is_given(engine: SglangEngine) -> None:
    """If SGLang chooses the port, its scheduler may die with "address already in use"."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if lowest < 32_000:
        pytest.skip(f"connections of this machine have ports from {lowest}")
    assert 20_000 <= engine._engine.server_args.nccl_port < 32_000


async def test_a_turn_says_which_of_its_tokens_were_drafted(engine: SglangEngine) -> None:
    for _ in range(2):
        turn = await engine.generate(TurnRequest(PROMPT, GREEDY, state=state("accepted")))
    assert len(turn.accepted) == 24
    assert not turn.accepted[0]
    assert sum(turn.accepted) == turn.draft.accepted <= turn.draft.drafted <= 7 * turn.draft.verify_steps
    assert turn.draft.verify_steps == 24 - sum(turn.accepted) < 12


def test_more_context_than_the_model_has_is_refused_before_sglang_starts(folder: Path) -> None:
    config = SglangEngineConfig(max_context=CONTEXT + 1, engine_args={"device": "cpu"})
    with pytest.raises(ValueError, match=f"max_context is {CONTEXT + 1}, but the model .* has a context of {CONTEXT}"):
        SglangEngine(folder, config=config)


async def test_penalties_are_refused_where_trees_are_verified(engine: SglangEngine) -> None:
    with pytest.raises(UnsupportedSampling, match="draft_tokens=0"):
        await engine.generate(TurnRequest(PROMPT, Sampling(frequency_penalty=0.5)))


async def test_requests_that_are_aborted_while_they_wait_are_forgotten(engine: SglangEngine) -> None:
    for _ in range(ATTEMPTS):
        asked = TurnRequest(PROMPT, Sampling(max_tokens=CONTEXT))
        waiting = [asyncio.create_task(engine.generate(asked)) for _ in range(3 * engine.config.max_batch)]
        await soon(lambda waiting=waiting: engine.live >= len(waiting), 120)
        waiting.pop().cancel()  # nobody takes its answer
        await soon(lambda waiting=waiting: engine.live <= len(waiting), 120)
        await asyncio.to_thread(engine.abort_all)
        turns = await asyncio.gather(*waiting)
        if not all(turn.token_ids for turn in turns):
            break
    assert not all(turn.token_ids for turn in turns), "the control: none waited"
    assert not engine._engine.tokenizer_manager.rid_to_state


async def test_the_store_outlives_a_flush_weights_and_a_release_of_the_memory(engine, policy):
    import torch

    prompts, name = [(*PROMPT, n) for n in range(3)], "lm_head.weight"
    said = [await engine.generate(TurnRequest(prompt, GREEDY, state=state("kept"))) for prompt in prompts]
    with new_weights(engine, policy, {name: torch.roll(policy.weights()[name], 1, 0)}):
        other = [await engine.generate(TurnRequest(prompt, GREEDY, state=state("kept"))) for prompt in prompts]
    assert [turn.token_ids[0] for turn in other] == [(turn.token_ids[0] + 1) % 32 for turn in said]
    engine.release_memory()
    engine.resume_memory()
    engine.update_weights(list(policy.weights().items()))
    again = [await engine.generate(TurnRequest(prompt, GREEDY, state=state("kept"))) for prompt in prompts]
    assert [turn.token_ids for turn in again] == [turn.token_ids for turn in said]
    assert steps(again) <= 3 * 24 / 4


class TestRunAhead(RunAheadChecks):
    # Last: the drafter learns here that siblings seldom agree.

    @pytest.mark.parametrize("by_priority", [True, False])
    async def test_sglang_itself_takes_the_slot_of_a_precomputed_turn(
        self, engine: SglangEngine, policy: PolicyLaw, monkeypatch: pytest.MonkeyPatch, by_priority: bool
    ) -> None:
        """Control: without the priority, a requested turn waits for an earlier one to end."""
        if not by_priority:
            monkeypatch.setattr(SglangDialect, "precomputed", 0)
        batch, seeds = engine.config.max_batch, range(4)
        long = [policy.seeded(PROMPT, LONG, seed) for seed in seeds]
        first = False
        for attempt in range(ATTEMPTS if by_priority else 1):
            name = f"slots {by_priority} {attempt}"
            many = (engine.generate(asked(n % 4, LONG, step=2, name=name)) for n in range(batch))
            ahead = [asyncio.create_task(turn) for turn in many]
            await soon(lambda: engine.live == batch, 120)
            await engine.generate(asked(9, 2))
            first |= not any(task.done() for task in ahead)
            assert [list(turn.token_ids) for turn in await all_of(ahead)] == [long[n % 4] for n in range(batch)]
            if first:
                break
        assert first is by_priority


@pytest.mark.parametrize(
    ("argument", "value"),
    [("speculative_accept_threshold_single", 0.9), ("page_size", 16), ("speculative_num_draft_tokens", 0)],
)
def test_a_server_that_would_be_wrong_does_not_start(engine, folder, argument, value):
    from sglang.srt.server_args import ServerArgs

    good = {**CPU_ARGS, "model_path": str(folder), "skip_tokenizer_init": True, "speculative_algorithm": "TURNTREE"}
    ServerArgs(**good)
    with pytest.raises(ValueError, match=argument):
        ServerArgs(**{**good, argument: value})


@pytest.mark.release
def test_alike_siblings_that_fill_up_a_tree_move_the_law(folder: Path, policy: PolicyLaw) -> None:
    """Control of the tests of distributions: SGLang fills n-gram trees with siblings of token 0, and each counts."""
    import sglang

    prepare()
    made = sglang.Engine(
        model_path=str(folder),
        skip_tokenizer_init=True,
        speculative_algorithm="NGRAM",
        speculative_num_draft_tokens=32,
        speculative_ngram_capacity=100_000,
        **{**CPU_ARGS, "max_running_requests": 48, "nccl_port": free_port()},
    )
    drawn: Counter[tuple[int, ...]] = Counter()
    try:
        for _ in range(20):
            flush(made)  # the corpus forgets, so that there is nothing to draft and the tree is all padding
            sampling = {"temperature": 1.0, "max_new_tokens": 2, "ignore_eos": True}
            out = made.generate(input_ids=[list(PROMPT)] * 48, sampling_params=sampling)
            drawn.update(tuple(o["output_ids"]) for o in out)
    finally:
        made.shutdown()
    exact = policy.turns(PROMPT, 2)
    assert chi_square(drawn, exact) < 1e-9
    first, second = ([tokens_at(turns, n) for turns in (drawn, exact)] for n in range(2))
    assert chi_square(*first) > 1e-3, "before any draft all is well"
    assert second[0][(0,)] > 3 * drawn.total() * second[1][(0,)]


def tokens_at(turns: dict[tuple[int, ...], Any], number: int) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for turn, weight in turns.items():
        found[turn[number : number + 1]] += weight
    return found
