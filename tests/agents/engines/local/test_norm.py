"""Norms of a policy on the CPU: the compiled loop where it computes the same, else the model's."""

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from turntree.agents.engines.local.forward.linear import RmsNorm, join_norms


class Centred(nn.Module):
    """Another norm under the same names."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(size)), 1e-6

    def forward(self, rows):
        return nn.functional.layer_norm(rows, self.weight.shape, self.weight, eps=self.variance_epsilon)


@pytest.mark.parametrize("size", [8, 576])
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Qwen3RMSNorm])
@torch.inference_mode()
def test_a_norm_by_the_loop_is_the_models_and_of_a_row_alone(kind, size):
    old = kind(size, 1e-5).requires_grad_(False)
    model = nn.Sequential(old)
    join_norms(model)
    assert isinstance(model[0], RmsNorm)
    assert model[0].weight is old.weight
    old.weight.copy_(torch.rand(size) + 0.5)  # as an update does
    rows = torch.randn(1, 300, 2, size) * torch.logspace(-6, 3, 300)[:, None, None]
    for some in (rows, rows[:, :, 1], rows[:, :0], torch.zeros(1, size)):
        torch.testing.assert_close(model(some), old(some), rtol=1e-5, atol=1e-7)
    assert torch.equal(model(rows[:, 7:9]), model(rows)[:, 7:9])


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@torch.inference_mode()
def test_what_is_no_number_stays_none(value):
    old = LlamaRMSNorm(16).requires_grad_(False)
    model = nn.Sequential(old)
    join_norms(model)
    rows = torch.ones(1, 16)
    rows[0, 3] = value
    torch.testing.assert_close(model(rows), old(rows), equal_nan=True)


@pytest.mark.parametrize(
    "norm", [Centred(64), Gemma3RMSNorm(64), LlamaRMSNorm(64).double(), LlamaRMSNorm((2, 64))], ids=str
)
def test_what_computes_something_else_stays_as_it_is(norm):
    model = nn.Sequential(norm.requires_grad_(False))
    join_norms(model)
    assert model[0] is norm
