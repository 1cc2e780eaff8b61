import json
from pathlib import Path

import pytest
from tables import table

from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.memory.shapes import SHAPES, ModelShape, shape_of

QWEN = table(__file__, "qwen")  #: shapes of Qwen2.5 by size, as published


@pytest.mark.parametrize("size", QWEN)
def test_the_parameters_are_counted_as_transformers_makes_them(size: str) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.device("meta"):
        model = Qwen2ForCausalLM(Qwen2Config(**QWEN[size]))
    shape = ModelShape(**QWEN[size])
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.layer == sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    assert shape == SHAPES[f"Qwen/Qwen2.5-{size.upper()}-Instruct"]


def test_a_folder_says_the_shape_of_its_model(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**QWEN["7b"], "model_type": "qwen2"}))
    assert shape_of(str(tmp_path)) == shape_of("Qwen/Qwen2.5-7B-Instruct")
    file.write_text(json.dumps({**QWEN["7b"], "head_dim": 64}))
    assert shape_of(str(tmp_path)).kv_width == 4 * 64


def test_the_tape_of_a_layer_is_what_autograd_keeps() -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    size = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
    shape = ModelShape(vocab_size=16, num_hidden_layers=1, **size)
    config = Qwen2Config(vocab_size=16, num_hidden_layers=1, attn_implementation="sdpa", **size)
    layers = Qwen2ForCausalLM(config).bfloat16().model
    own = {parameter.data_ptr() for parameter in layers.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = 256
    hidden = torch.randn(1, tokens, 64, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layers(inputs_embeds=hidden)  # holds the graph, so that no storage is counted for another
    assert output.last_hidden_state.requires_grad
    assert 0.5 < sum(kept.values()) / (tokens * shape.tape) < 1.5


def test_what_is_not_a_dense_decoder_of_known_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"shape of nobody/model is not known; .* Qwen/Qwen2\.5-7B-Instruct"):
        shape_of("nobody/model")
    (tmp_path / "config.json").write_text(json.dumps({**QWEN["7b"], "num_experts": 8}))
    with pytest.raises(ConfigError, match="mixture of experts"):
        shape_of(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    with pytest.raises(ConfigError, match="has no vocab_size, intermediate_size"):
        shape_of(str(tmp_path))
