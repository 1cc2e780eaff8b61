from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from overlapped_vllm import LONGEST, ScriptedSwitch, engine_arguments, overlap, vllm_here
from tiny_llama import save_tiny_llama

from turntree.agents.engines.request_wire import request_entries
from turntree.agents.engines.vllm.settings import DrafterSettings

pytestmark = pytest.mark.vllm

Made = Callable[..., "Steps"]


class Steps:
    """A scheduler whose requests sample one token a step, known when the next step is scheduled."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.running: Any = None
        self.step = 0

    def add(self, name: str, *, prompt: int = 10, **sampling: Any) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        given = SamplingParams(max_tokens=20, ignore_eos=True, **sampling)
        self.scheduler.add_request(Request(name, [7] * prompt, given, None))

    def next(self) -> dict[str, int]:
        from vllm.v1.outputs import ModelRunnerOutput

        scheduled, before, self.running = self.scheduler.schedule(), self.running, None
        if scheduled.total_num_scheduled_tokens:
            self.running = scheduled
        if before is not None:
            names = list(before.num_scheduled_tokens)
            rows = {name: row for row, name in enumerate(names)}
            self.scheduler.update_from_output(before, ModelRunnerOutput(names, rows, [[9]] * len(names)))
        return {name: len(tokens) for name, tokens in scheduled.scheduled_spec_decode_tokens.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    pytest.importorskip("vllm", reason="needs vLLM; see make test-vllm")
    folder: Path = save_tiny_llama(tmp_path_factory.mktemp("policy"), vocabulary=64)
    with vllm_here() as patch:
        import torch
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        overlap(patch)
        spec = FullAttentionSpec(block_size=32, num_kv_heads=1, head_size=32, dtype=torch.float32)

        def make(switch: Any = None, **settings: Any) -> Steps:
            given = engine_arguments(folder, drafts=True, settings=DrafterSettings(**settings))
            config = EngineArgs(**given).create_engine_config()
            config.cache_config.num_gpu_blocks = 14
            cache = KVCacheConfig(14, [], [KVCacheGroupSpec(["layer"], spec)])
            scheduler = config.scheduler_config.get_scheduler_cls()(
                vllm_config=config,
                kv_cache_config=cache,
                structured_output_manager=SimpleNamespace(should_advance=lambda *_, **__: False),
                block_size=32,
            )
            if switch is not None:
                scheduler._switch = switch
            return Steps(scheduler)

        yield make


def test_while_the_switch_is_on_each_request_has_places_for_the_longest_draft_of_so_many(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = "turntree.agents.engines.vllm.overlap.scheduler.draft_length"
    monkeypatch.setattr(lengths, lambda rows, longest: longest - rows)
    steps = made(ScriptedSwitch(0))
    for name in "ab":
        steps.add(name)
    assert steps.next() == {}  # nothing precedes it
    assert steps.next() == {"a": LONGEST - 2, "b": LONGEST - 2}
    steps.add("c")
    assert steps.next() == {"a": LONGEST - 2, "b": LONGEST - 2}  # as the step before was scheduled
    assert steps.next() == {name: LONGEST - 3 for name in "abc"}


def test_while_it_is_off_there_are_none(made: Made) -> None:
    switch = ScriptedSwitch(3, on=False)
    steps = made(switch)
    steps.add("a")
    assert [steps.next().get("a", 0) for _ in range(8)] == [0, 0, 0, 6, 6, 6, 0, 0]


def test_a_request_that_is_left_out_of_a_step_has_none_in_the_next_one(made: Made) -> None:
    steps = made(ScriptedSwitch(0))
    for name in "ab":
        steps.add(name)
    steps.next()
    assert steps.next() == {"a": LONGEST, "b": LONGEST}
    most, steps.scheduler.max_num_scheduled_tokens = steps.scheduler.max_num_scheduled_tokens, 1 + LONGEST
    assert steps.next() == {"a": LONGEST}
    steps.scheduler.max_num_scheduled_tokens = most
    assert steps.next() == {"a": LONGEST}
    assert steps.next() == {"a": LONGEST, "b": LONGEST}


def test_a_request_that_joins_with_one_token_left_has_none_yet(made: Made) -> None:
    steps = made(ScriptedSwitch(0))
    steps.add("a")
    steps.next()
    steps.add("b", prompt=1)
    assert steps.next() == {"a": LONGEST}
    assert "b" in steps.running.num_scheduled_tokens
    assert steps.next() == {"a": LONGEST, "b": LONGEST}


@pytest.mark.parametrize(
    "asked",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"extra_args": request_entries(given=2, reverified=True)},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_requests_whose_tokens_vllm_needs_on_the_host_have_none_beside_others_that_have(
    made: Made, asked: dict[str, Any]
) -> None:
    steps = made(ScriptedSwitch(0))
    steps.add("a", **asked)
    steps.add("b")
    steps.next()
    assert steps.next() == {"b": LONGEST}
    while steps.running is not None:
        assert "a" not in steps.next()
    assert not steps.scheduler._undrafted  # none is remembered for ever


def test_a_request_under_a_grammar_is_one_of_them() -> None:
    scheduler = pytest.importorskip("turntree.agents.engines.vllm.overlap.scheduler")
    from vllm import SamplingParams

    under, free = (SimpleNamespace(sampling_params=SamplingParams(), use_structured_output=on) for on in (True, False))
    assert scheduler._needs_tokens(under)
    assert not scheduler._needs_tokens(free)


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_drafter_that_is_off_has_no_places(made: Made, adaptive: bool) -> None:
    steps = made(ScriptedSwitch(0), enabled=False, adaptive=adaptive)
    steps.add("a")
    assert [steps.next() for _ in range(5)] == [{}] * 5


def test_one_that_does_not_adapt_has_places_in_every_step(made: Made) -> None:
    steps = made(adaptive=False)
    steps.add("a")
    assert [steps.next() for _ in range(5)] == [{}, *[{"a": LONGEST}] * 4]


def test_the_switch_is_told_of_each_step_that_follows_one(made: Made) -> None:
    switch = ScriptedSwitch(2)
    steps = made(switch)
    steps.add("a")
    steps.next()
    while steps.running is not None:
        steps.next()
    told = switch.observed
    assert [step["emitted"] for step in told] == [1] * 19  # of 20: none precedes the first
    assert {step["rows"] for step in told} == {1}
    assert {step["drafted"] for step in told} == {True, False}
    assert {step["prompt_tokens"] for step in told} == {0}
    assert steps.scheduler._ended is None  # what comes later does not follow
