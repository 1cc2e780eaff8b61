"""A test that fails here because vLLM's function is right means that the repair can be removed."""

import importlib
import sys
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_runner import vllm_config

from turntree.agents.engines.vllm import cpu_repair
from turntree.agents.engines.vllm.drafter import ForestDrafter
from turntree.agents.engines.vllm.settings import DrafterSettings

torch = pytest.importorskip("torch")


def forgets(x: Any, ends: Any, count: int, replace_from: float = 0, replace_to: float = 0) -> Any:
    return x.new_full((count,), 0.123)


def test_each_position_gets_the_value_of_its_own_request_and_a_request_without_drafts_has_none() -> None:
    x, ends = torch.tensor([0.5, 0.0, 2.0]), torch.tensor([2, 3, 5], dtype=torch.int32)
    out = cpu_repair.expand_batch_to_tokens(x, ends, 5, replace_from=0, replace_to=1)
    assert out.tolist() == [0.5, 0.5, 1.0, 2.0, 2.0]
    assert out.dtype == x.dtype
    x, ends = torch.tensor([7, 8, 9], dtype=torch.int32), torch.tensor([0, 2, 2], dtype=torch.int32)
    assert cpu_repair.expand_batch_to_tokens(x, ends, 2).tolist() == [8, 8]


def test_the_defect_is_found_by_what_a_function_does() -> None:
    assert cpu_repair.expands_rightly(cpu_repair.expand_batch_to_tokens)
    assert not cpu_repair.expands_rightly(forgets)


def test_the_drafter_refuses_a_build_with_the_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = SimpleNamespace(expand_batch_to_tokens=forgets)
    monkeypatch.setitem(sys.modules, "vllm.v1.sample.rejection_sampler", broken)
    drafter = ForestDrafter(vllm_config(DrafterSettings(), 4))
    with pytest.raises(RuntimeError, match="uninitialised"):
        drafter.bind(SimpleNamespace(device=SimpleNamespace(type="cpu"), max_model_len=64))


@pytest.mark.vllm
def test_vllm_s_kernel_forgets_what_it_writes_for_any_type_but_int64() -> None:
    importlib.import_module("vllm.platforms").current_platform.import_kernels()
    module = importlib.import_module("vllm.utils.cpu_triton_utils")
    ends = torch.tensor([2, 3], dtype=torch.int32)
    out = torch.full((3,), 0.123)
    module._expand_kernel_impl(out, torch.tensor([0.5, 2.0]), ends, 0, 0)
    assert out.tolist() == pytest.approx([0.123] * 3), "the kernel writes now: remove cpu_repair for this version"
    whole = torch.zeros(3, dtype=torch.int64)
    module._expand_kernel_impl(whole, torch.tensor([5, 6]), ends, 0, 0)
    assert whole.tolist() == [5, 5, 6]


@pytest.mark.vllm
def test_the_draw_after_a_rejected_draft_takes_what_its_caller_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module("vllm.platforms").current_platform.import_kernels()
    module = importlib.import_module("vllm.utils.cpu_triton_utils")
    upstream = module._sample_recovered_tokens_kernel_impl
    kernel = module.sample_recovered_tokens_kernel
    monkeypatch.setattr(kernel, "func", upstream)
    for _ in range(2):
        cpu_repair.repair_recovery()
    out, ends, drafts = (torch.tensor(ids, dtype=torch.int32) for ids in ([7, 7, 7], [1, 3], [2, 1, 2]))
    law, clocks = torch.tensor([[1.0, 2, 9]] * 3), torch.tensor([[3.0, 1, 1], [1, 1, 1]])
    given = (out, ends, drafts, None, law, clocks.double(), 3, 8192)
    kernel[(2, 2)](*given, NO_DRAFT_PROBS=True, USE_FP64_GUMBEL=True)
    assert out.tolist() == [0, 2, 1]
    if "USE_FP64_GUMBEL" in signature(upstream).parameters:
        assert kernel.func is upstream
    else:
        with pytest.raises(TypeError, match="USE_FP64_GUMBEL"):  # otherwise: remove repair_recovery for this version
            upstream(*given, NO_DRAFT_PROBS=True, USE_FP64_GUMBEL=True)


@pytest.mark.vllm
def test_vllm_s_output_layer_keeps_a_copy_of_weights_that_change_and_a_packed_one_has_them(monkeypatch):
    module = importlib.import_module("vllm.model_executor.layers.vocab_parallel_embedding")

    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(64, 32), requires_grad=False)
            self.quant_method = module.UnquantizedEmbeddingMethod()

    monkeypatch.setattr(module, "ParallelLMHead", Head)
    model = torch.nn.Sequential(head := Head())
    head.quant_method.process_weights_after_loading(head)
    runner = SimpleNamespace(reload_weights=lambda: head.weight.mul_(2), get_model=lambda: model)
    runner.reload_weights()
    logit = head.quant_method.apply(head, torch.ones(1, 32))[0, 0].item()
    assert logit == 32, "the new weights are used: remove repair_reload for this version"
    for _ in range(2):
        cpu_repair.repair_reload(runner)
    runner.reload_weights()
    assert head.quant_method.apply(head, torch.ones(1, 32))[0, 0].item() == 4 * 32
