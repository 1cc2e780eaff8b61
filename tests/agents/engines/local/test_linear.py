import copy

import numpy as np
import pytest
import torch
from cores import run_core
from plain_decoding import laws_along
from tiny_llama import random_llama
from torch import nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from turntree.agents.engines.local import LocalEngineConfig
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.linear import BLOCKED, Blocked, RmsNorm, block, join_norms
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.protocol import Sampling

WIDTH = 320
PROMPTS = [[1, 2, 3], [7] * 20, [300, 5]]
SAMPLING = Sampling(max_tokens=6)
MKLDNN = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


def wide_llama(*, seed: int = 0, tied: bool = False, **more: bool):
    """Return a Llama whose layers are blocked, except the last one of an MLP; neither flat nor certain."""
    fields = {"hidden_size": WIDTH, "intermediate_size": 300, "num_attention_heads": 5, "num_key_value_heads": 1}
    fields |= {"tie_word_embeddings": tied, "max_position_embeddings": 128, **more}
    model = random_llama(330, seed=seed, **fields).eval()
    for weight in model.parameters():
        weight.data.mul_(3)
    return model


def core_of(model) -> EngineCore:
    return EngineCore(Policy(copy.deepcopy(model)), LocalEngineConfig(max_context=128, speculation=None), None)


def assert_speaks_as(core: EngineCore, model) -> None:
    turns = run_core(core.policy.model, PROMPTS, SAMPLING, core=core)
    for prompt, turn in zip(PROMPTS, turns, strict=True):
        distribution = laws_along(model, prompt, turn.token_ids, SAMPLING)
        np.testing.assert_allclose(turn.logprobs, np.log(distribution[range(6), list(turn.token_ids)]), atol=2e-3)


@MKLDNN
@pytest.mark.parametrize("tied", [False, True])
def test_a_wide_policy_has_the_models_distributions_before_and_after_an_update(tied):
    old, new = wide_llama(tied=tied), wide_llama(seed=1, tied=tied)
    core = core_of(old)
    kinds = {type(module) for module in core.policy.model.modules()}
    assert {Blocked, torch.nn.Linear} < kinds
    assert_speaks_as(core, old)
    with pytest.raises(AssertionError):
        assert_speaks_as(core, new)
    core.update_weights(list(new.state_dict().items()), 1)
    assert_speaks_as(core, new)


@MKLDNN
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight"])
def test_tied_weights_follow_an_update_of_either_name(name):
    old, new = wide_llama(tied=True), wide_llama(seed=1, tied=True)
    core = core_of(old)
    core.update_weights([(key, value) for key, value in new.named_parameters()], 1)
    back = old.state_dict()[name]
    core.update_weights([(name, back)], 2)
    mixed = copy.deepcopy(new)
    mixed.model.embed_tokens.weight.data.copy_(back)
    assert_speaks_as(core, mixed)


@MKLDNN
def test_two_policies_over_one_model_both_follow_an_update():
    shared = copy.deepcopy(wide_llama())
    cores = [EngineCore(Policy(shared), LocalEngineConfig(max_context=128, speculation=None), None) for _ in range(2)]
    new = wide_llama(seed=1)
    cores[1].update_weights(list(new.state_dict().items()), 1)
    for core in cores:
        assert_speaks_as(core, new)


@MKLDNN
def test_what_is_left_of_a_dense_weight_cannot_be_taken_for_it():
    weight = blocked(torch.nn.Linear(WIDTH, WIDTH)).weight
    assert weight.shape == (WIDTH, WIDTH)
    assert weight.isnan().all()
    with pytest.raises(RuntimeError, match="single memory location"):
        weight.copy_(torch.zeros(WIDTH, WIDTH))


@MKLDNN
def test_no_weight_stays_where_the_models_file_is_mapped():
    # One such weight would keep all pages of the file in memory.
    model = wide_llama(tied=True)
    mapped = [weight.untyped_storage() for weight in model.parameters()]  # alive: nothing else lies there
    kept = {name: weight.clone() for name, weight in model.named_parameters()}
    block(model)
    for name, weight in model.named_parameters():
        assert weight.untyped_storage().data_ptr() not in {old.data_ptr() for old in mapped}
        assert torch.equal(weight, kept[name]) or weight.isnan().all()
    assert model.lm_head.weight is model.model.embed_tokens.weight


@MKLDNN
@pytest.mark.parametrize("bias", [False, True])
def test_layers_of_the_same_rows_are_one_product_of_them_unless_they_have_biases(bias):
    # Keys, values and each gate alone would be too small for blocks.
    layers = wide_llama(attention_bias=bias, mlp_bias=bias).model.layers[0]
    for module, names in [(layers.self_attn, ["q_proj", "k_proj", "v_proj"]), (layers.mlp, ["gate_proj", "up_proj"])]:
        for name in names if bias else ():
            getattr(module, name).bias.data.normal_()
        plain = [copy.deepcopy(getattr(module, name)) for name in names]
        block(module)
        parts = [getattr(module, name) for name in names]
        products = {id(part._product) for part in parts if isinstance(part, Blocked)}
        rows = [torch.randn(1, 3, WIDTH) for _ in range(2)]
        for order in ([0, 1, 0], [1, 1, 0], [0, 0, 0]):  # of other rows in between, and of the same
            for part, layer, which in zip(parts, plain, order, strict=False):
                torch.testing.assert_close(part(rows[which]), layer(rows[which]))
        if not bias:
            assert len(products) == 1
            assert parts[0]._product._last is None  # whose parts have all been asked for


@MKLDNN
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [(0, WIDTH), (1, WIDTH), (1, 17, WIDTH)])
def test_products_are_those_of_linear_for_any_number_of_rows(rows, bias):
    layer, rows = torch.nn.Linear(WIDTH, 400, bias=bias).requires_grad_(False), torch.randn(rows)
    torch.testing.assert_close(blocked(layer)(rows), layer(rows))


@pytest.mark.parametrize(("width", "dtype"), [(int(BLOCKED**0.5), torch.float32), (WIDTH, torch.float64)])
def test_small_layers_and_double_precision_stay_as_they_are(width, dtype):
    layer = torch.nn.Linear(width, width, dtype=dtype)
    model = torch.nn.Sequential(layer)
    assert block(model) == {}
    assert model[0] is layer


def blocked(layer: torch.nn.Linear) -> Blocked:
    model = torch.nn.Sequential(layer.requires_grad_(False))
    block(model)
    assert isinstance(model[0], Blocked)
    return model[0]


class Centred(nn.Module):
    """A different norm with the same attribute names."""

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
