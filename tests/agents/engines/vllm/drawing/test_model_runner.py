import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from turntree.agents.engines.request_wire import request_entries
from turntree.agents.engines.vllm.drawing import model_runner


class Front:
    def __init__(self, *, second: bool) -> None:
        self.vllm_config = SimpleNamespace(use_v2_model_runner=second)

    def _validate_params(self, params: Any, tasks: Any) -> str:
        return f"validated for {tasks}"


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> type[Front]:
    monkeypatch.setattr("turntree.agents.engines.vllm.compat.installed_version", lambda: "0.28.0")

    class Fresh(Front):
        _validate_params = Front._validate_params

    module = ModuleType("vllm.v1.engine.input_processor")
    module.InputProcessor = Fresh  # type: ignore[attr-defined]
    for package in ("vllm", "vllm.v1", "vllm.v1.engine"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Fresh


def parameters(seed: int | None) -> Any:
    return SimpleNamespace(extra_args=request_entries(seed=seed))


def test_a_seed_that_the_second_runner_would_ignore_is_refused_with_words(front: type[Front]) -> None:
    assert front(second=True)._validate_params(parameters(5), "text") == "validated for text"  # control: it was not
    model_runner.refuse_seeds()
    with pytest.raises(ValueError, match="VLLM_USE_V2_MODEL_RUNNER=0"):
        front(second=True)._validate_params(parameters(5), "text")


@pytest.mark.parametrize(("second", "params"), [(False, parameters(5)), (True, parameters(None)), (True, object())])
def test_requests_that_the_runner_serves_go_on(front: type[Front], second: bool, params: Any) -> None:
    model_runner.refuse_seeds()
    assert front(second=second)._validate_params(params, tasks="text") == "validated for text"


@pytest.mark.parametrize("second", [True, False])
def test_a_version_that_was_not_checked_drafts_and_refuses_seeds_by_name(front, second, monkeypatch):
    """Control: the same requests with a checked version, above."""
    monkeypatch.setattr("turntree.agents.engines.vllm.compat.installed_version", lambda: "0.33.0")
    model_runner.refuse_seeds()
    with pytest.raises(ValueError, match=r"checked only with vLLM 0\.24 and 0\.28, but 0\.33\.0 is installed"):
        front(second=second)._validate_params(parameters(5), "text")
    assert front(second=second)._validate_params(parameters(None), "text") == "validated for text"
    with pytest.raises(RuntimeError, match=r"0\.33\.0 is installed"):
        model_runner.check_seeded([False])


def test_refusing_twice_wraps_nothing_twice(front: type[Front]) -> None:
    model_runner.refuse_seeds()
    before = front._validate_params
    model_runner.refuse_seeds()
    assert front._validate_params is before


@pytest.mark.parametrize(("given", "chosen"), [(None, "0"), ("1", "1"), ("0", "0")])
def test_the_first_runner_is_asked_for_unless_the_caller_chose(monkeypatch, given, chosen):
    monkeypatch.delenv(model_runner.VARIABLE, raising=False)
    if given is not None:
        monkeypatch.setenv(model_runner.VARIABLE, given)
    model_runner.choose_first()
    assert os.environ[model_runner.VARIABLE] == chosen


def test_an_engine_that_would_ignore_seeds_is_refused_with_words(front: type[Front]) -> None:
    model_runner.check_seeded([True, True])
    with pytest.raises(RuntimeError, match="VLLM_USE_V2_MODEL_RUNNER must be 0"):
        model_runner.check_seeded([True, False])


@pytest.mark.vllm
@pytest.mark.parametrize("runner", ["0", "1"])
def test_vllms_own_front_end_refuses_a_seed_exactly_with_the_second_runner(monkeypatch, runner):
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.v1.engine.input_processor import InputProcessor

    monkeypatch.setenv(model_runner.VARIABLE, runner)
    monkeypatch.setattr(InputProcessor, "_validate_params", InputProcessor._validate_params)  # put back afterwards
    model_runner.refuse_seeds()
    front, reached = object.__new__(InputProcessor), pytest.raises(Exception)  # noqa: PT011
    front.vllm_config = object.__new__(VllmConfig)
    with reached as refused:
        front._validate_params(SamplingParams(extra_args=request_entries(seed=5)), ("generate",))
    assert ("second model runner" in str(refused.value)) == (runner == "1")
    with reached as refused:
        front._validate_params(SamplingParams(), ("generate",))
    assert "second model runner" not in str(refused.value)
