from __future__ import annotations

import torch

from turntree.agents.verl.platform_cpu import PlatformCPU


def test_tensors_go_to_the_current_device() -> None:
    platform = PlatformCPU()
    assert torch.zeros(1).to(platform.current_device()).device.type == "cpu"
    assert torch.zeros(1).to(platform.device_module.current_device()).device.type == "cpu"


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
