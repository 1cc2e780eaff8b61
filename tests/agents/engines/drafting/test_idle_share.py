import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from cores import run_core, tiny_llama
from vllm_runner import ScriptedRunner

from turntree.agents.engines.local import LocalEngineConfig, Speculation
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.protocol import Sampling
from turntree.agents.engines.sglang.settings import SglangSettings
from turntree.agents.engines.sglang.worker.drafter import TreeDrafter
from turntree.agents.engines.vllm import drafter
from turntree.spec_tree import SpecForest

DRAFT, PASS, NIGHT, STEPS = 3.0, 6.0, 1000.0, 5
PROMPT, TURN = [5, 6, 7], list(range(11, 11 + STEPS + 1))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        def spent(*args: Any, **kwargs: Any) -> Any:
            self.now += seconds
            return call(*args, **kwargs)

        return spent


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", clock)
        patch.setattr(SpecForest, "draft", clock.spend(DRAFT, SpecForest.draft))
        yield clock


def local(clock: Clock) -> tuple[float, float]:
    config = LocalEngineConfig(max_context=64, speculation=Speculation(adaptive=False))
    policy = Policy(tiny_llama())
    policy.logits = clock.spend(PASS, policy.logits)  # type: ignore[method-assign]
    core = EngineCore(policy, config, SpecForest())
    for _ in range(2):
        run_core(tiny_llama(), [PROMPT], Sampling(max_tokens=STEPS), core=core)
        clock.now += NIGHT
    return core.stats.draft_idle_seconds, core.stats.seconds


class Late:
    """A thread pool that does nothing until somebody waits."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def submit(self, *call: Any) -> Any:
        return SimpleNamespace(result=partial(*call))


class Soon(Late):
    """A thread pool that is done before anybody waits."""

    def submit(self, *call: Any) -> Any:
        partial(*call)()
        return SimpleNamespace(result=lambda: None)


def vllm(clock: Clock) -> tuple[float, float]:
    runner = ScriptedRunner()
    chains = runner.drafter._chains
    chains.propose = clock.spend(DRAFT, chains.propose)  # type: ignore[method-assign]
    for name in "ab":
        runner.add(name, PROMPT, TURN)
        while len(runner.requests[name].output_token_ids) < len(TURN):
            clock.now += PASS
            runner.step()
        runner.remove(name)
        clock.now += NIGHT
    stats = runner.drafter.stats()
    return stats["idle_seconds"], stats["seconds"]


def sglang(clock: Clock) -> tuple[float, float]:
    trees = TreeDrafter(SglangSettings(adaptive=False), SpecForest(), 8)
    for name in "ab":
        sampling = SimpleNamespace(custom_params=None, max_new_tokens=len(TURN))
        request = SimpleNamespace(
            rid=name, sampling_params=sampling, origin_input_ids=PROMPT, output_ids=[], finished_reason=None
        )
        for token in TURN:
            request.output_ids.append(token)
            trees.propose([request])
            clock.now += PASS
            trees.settle()
        request.finished_reason = SimpleNamespace(to_json=lambda: {"type": "length"})
        clock.now += NIGHT
    return trees.counts.idle_seconds, trees.counts.seconds


def test_drafts_made_during_vllms_own_work_keep_no_device_waiting(clock, monkeypatch):
    monkeypatch.setattr(drafter, "ThreadPoolExecutor", Soon)
    idle, seconds = vllm(clock)
    assert seconds >= STEPS * (DRAFT + PASS)
    assert idle == 0


@pytest.mark.parametrize("engine", [local, vllm, sglang])
def test_the_device_waits_while_drafts_are_made_and_not_while_the_engine_is_idle(clock, engine, monkeypatch):
    monkeypatch.setattr(drafter, "ThreadPoolExecutor", Late)
    idle, seconds = engine(clock)
    assert seconds >= STEPS * (DRAFT + PASS)
    assert idle / seconds == pytest.approx(DRAFT / (DRAFT + PASS))
