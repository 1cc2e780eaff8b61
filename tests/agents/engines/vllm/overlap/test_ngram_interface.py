from types import SimpleNamespace
from typing import Any

import pytest

from turntree.agents.engines.vllm.overlap import ngram_interface

CONFIG = object()
WITH, PLAIN = (CONFIG, True), (None, False)
"""A runner's ``speculative_config`` and ``use_async_spec_decode``, with its drafter and as without one."""


class Runner:
    """Records in which mode each of its methods runs."""

    def __init__(self) -> None:
        self.speculative_config: Any = CONFIG
        self.use_async_spec_decode = True
        self.max_num_reqs = 4
        self.execute_model_state: Any = None
        self.modes: list[tuple[Any, bool]] = []
        self.fails = False

    def _ran(self) -> None:
        self.modes.append((self.speculative_config, self.use_async_spec_decode))
        if self.fails:
            raise OSError("the step failed")

    def execute_model(self, scheduler_output: Any) -> None:
        self._ran()
        self.execute_model_state = SimpleNamespace(scheduler_output=scheduler_output)

    def sample_tokens(self, _: Any) -> str:
        self._ran()
        self.execute_model_state = None
        return "output"

    def _prepare_input_ids(self, *inputs: Any) -> tuple[Any, ...]:
        return inputs


class Drafter:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def record(self, *given: Any) -> None:
        self.calls.append(("record", *given))

    def trim(self, *given: Any) -> None:
        self.calls.append(("trim", *given))

    def upload(self) -> None:
        self.calls.append(("upload",))


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = SimpleNamespace()
    monkeypatch.setattr(ngram_interface, "_module", lambda: module)
    return module


@pytest.fixture
def runner(module: Any) -> Runner:
    runner = Runner()
    runner.drafter = Drafter()  # type: ignore[attr-defined]
    ngram_interface.follow(runner, runner.drafter)  # type: ignore[attr-defined]
    return runner


def step(runner: Any, *, planned: int = 0, then: int = 0, prompt: int = 0) -> list[tuple[Any, bool]]:
    runner.modes.clear()
    scheduled = SimpleNamespace(
        scheduled_spec_decode_tokens={"a": [-1] * planned} if planned else {},
        num_scheduled_tokens={"a": 1 + planned, "b": 1 + prompt},
        total_num_scheduled_tokens=2 + planned + prompt,
        num_spec_tokens_to_schedule=then,
    )
    runner.execute_model(scheduled)
    assert runner.sample_tokens(None) == "output"
    return list(runner.modes)


def test_a_step_runs_as_vllms_own_unless_drafts_come_before_in_or_after_it(runner: Any) -> None:
    assert step(runner) == [PLAIN] * 2
    assert step(runner, then=4) == [WITH] * 2  # its tokens are drafted from
    assert step(runner, planned=4, then=4) == [WITH] * 2
    assert step(runner, planned=4) == [WITH] * 2
    assert step(runner) == [WITH, PLAIN]  # its positions were counted with the drafts before it
    assert step(runner) == [PLAIN] * 2
    assert (runner.speculative_config, runner.use_async_spec_decode) == WITH


def test_a_step_whose_drafts_all_failed_to_come_is_one_with_drafts_still(runner: Any) -> None:
    runner.execute_model(
        scheduled := SimpleNamespace(
            scheduled_spec_decode_tokens={"a": [-1]},
            num_scheduled_tokens={"a": 2},
            total_num_scheduled_tokens=2,
            num_spec_tokens_to_schedule=0,
        )
    )
    scheduled.scheduled_spec_decode_tokens = {}
    scheduled.total_num_scheduled_tokens = scheduled.num_scheduled_tokens["a"] = 1
    runner.sample_tokens(None)
    assert runner.modes == [WITH] * 2
    assert step(runner) == [WITH, PLAIN]


def test_a_step_that_fails_leaves_the_runner_with_its_drafter(runner: Any) -> None:
    runner.fails = True
    with pytest.raises(OSError, match="the step failed"):
        step(runner)
    assert (runner.speculative_config, runner.use_async_spec_decode) == WITH


def test_the_drafter_is_told_of_each_step_and_asked_before_the_inputs_of_the_next(runner: Any, module: Any) -> None:
    step(runner, planned=3, then=4, prompt=7)
    assert runner.sample_tokens(None) == "output"  # of a step that samples nothing
    module.update_scheduler_for_invalid_drafts("event", "counts", "scheduled", {"a": 0})
    assert runner._prepare_input_ids(1, 2) == (1, 2)
    assert runner.drafter.calls == [("record", "output", 4, 7), ("trim", "scheduled"), ("upload",)]
