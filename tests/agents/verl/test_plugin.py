from __future__ import annotations

import importlib
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import verl  # noqa: F401  loads the plugin
from verl.plugin.platform import get_platform
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplicaRegistry

from turntree.agents.verl import plugin
from turntree.agents.verl.platform_cpu import PlatformCPU


def test_verl_runs_on_the_cpu_platform_once_the_plugin_is_loaded() -> None:
    assert isinstance(get_platform(), PlatformCPU)


def test_the_rollout_backend_has_a_server_side_and_a_weight_side() -> None:
    from turntree.agents.verl.replica import TurntreeReplica
    from turntree.agents.verl.weights import WeightSender

    assert RolloutReplicaRegistry.get("turntree") is TurntreeReplica
    assert get_rollout_class("turntree") is WeightSender


@pytest.mark.parametrize(("choice", "cpu"), [("0", False), ("1", True)])
def test_the_environment_variable_decides(monkeypatch: pytest.MonkeyPatch, choice: str, cpu: bool) -> None:
    monkeypatch.setenv("TURNTREE_VERL_CPU", choice)
    assert plugin.trains_on_cpu() is cpu


def test_a_machine_with_an_accelerator_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.plugin.platform import PlatformRegistry

    accelerator = SimpleNamespace(is_platform_available=lambda use_smi_check: True)
    selected: list[Any] = []
    monkeypatch.delenv("TURNTREE_VERL_CPU", raising=False)
    monkeypatch.setitem(PlatformRegistry._platforms, "new", lambda: accelerator)
    monkeypatch.setattr(plugin, "select_cpu_platform", lambda: selected.append(1))
    plugin.register()
    assert selected == []


def test_an_odd_choice_is_an_error_that_is_told_although_verl_swallows_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TURNTREE_VERL_CPU", "maybe")
    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="must be 0, 1 or unset, got 'maybe'"):
        importlib.reload(plugin)
    assert "could not be loaded" in caplog.text


@pytest.mark.parametrize("where", [PlatformCPU(), PlatformCPU().device_module])
def test_tensors_go_to_the_current_device(where: Any) -> None:
    assert torch.zeros(1).to(where.current_device()).device.type == "cpu"


def test_the_device_module_reports_memory_in_bytes() -> None:
    module = PlatformCPU().device_module
    available, total = module.mem_get_info()
    assert 0 < available <= total
    assert 0 < module.memory_allocated() < total


def test_what_the_device_module_lacks_comes_from_torch() -> None:
    assert PlatformCPU().device_module.Stream is torch.cpu.Stream


def test_the_random_state_can_be_put_back() -> None:
    module = PlatformCPU().device_module
    module.manual_seed(3)
    state = module.get_rng_state()
    first = torch.rand(4)
    module.set_rng_state(state)
    assert torch.equal(first, torch.rand(4))


def test_ray_is_asked_for_pretended_gpus() -> None:
    assert PlatformCPU().ray_resource_options(1) == {"num_gpus": 1}
