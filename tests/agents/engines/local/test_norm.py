"""Norms of a policy on the CPU: PyTorch's own where it has the model's bits, else the model's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from turntree.agents.engines.local.forward.norm import RmsNorm, join_norms


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
def test_a_norm_in_one_call_has_the_bits_of_the_models(kind, size):
    old = kind(size, 1e-5)
    old.weight.data.uniform_(0.5, 2)
    model = nn.Sequential(old)
    join_norms(model)
    assert isinstance(model[0], RmsNorm)
    assert model[0].weight is old.weight
    for rows in (torch.zeros(1, size), torch.randn(1, 300, size) * torch.logspace(-6, 3, 300)[:, None]):
        assert torch.equal(model(rows), old(rows))


@pytest.mark.parametrize("norm", [Centred(64), Gemma3RMSNorm(64), LlamaRMSNorm(64).double()], ids=str)
def test_what_computes_other_bits_stays_as_it_is(norm):
    model = nn.Sequential(norm)
    join_norms(model)
    assert model[0] is norm
