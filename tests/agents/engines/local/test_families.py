import pytest
import torch
import transformers
from combinations import every_third
from cores import AdversarialForest, run_core, same_turns
from pretended_device import DEVICE, pretended_device

from turntree.agents.engines.local import Speculation
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.protocol import Sampling

SMALL = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "pad_token_id": 0}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256}
FAMILIES = ("Llama", "Qwen2", "Qwen3", "Mistral", "Gemma3Text", "Phi3", "Olmo2")
WINDOW = {"sliding_window": 6}
LAYERS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
WINDOWED = {"Mistral": WINDOW, "Phi3": WINDOW, "Gemma3Text": WINDOW | LAYERS}


def build(family: str):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SMALL | WINDOWED.get(family, {}))
    name = {"Gemma3Text": "Gemma3ForCausalLM"}.get(family, f"{family}ForCausalLM")
    model = getattr(transformers, name)(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_says_what_its_own_attention_would_say(family):
    model = build(family)
    prompts = [[5, 6, 7], list(range(2, 30)), [9] * 12]
    turns = run_core(
        model, prompts, Sampling(temperature=0, max_tokens=16), forest=AdversarialForest(40),
        speculation=Speculation(max_depth=5, adaptive=False), dtype="float64",
    )  # fmt: skip
    model.set_attn_implementation("eager" if family == "Gemma3Text" else "sdpa")
    for prompt, turn in zip(prompts, turns, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *turn.token_ids]])).logits[0, len(prompt) - 1 : -1]
        own = torch.log_softmax(logits, -1)
        assert own.argmax(-1).tolist() == list(turn.token_ids)
        picked = own[range(16), list(turn.token_ids)].tolist()
        assert turn.logprobs == pytest.approx(picked, abs=1e-6)


@pytest.mark.parametrize("family", every_third(FAMILIES))
def test_every_family_says_the_same_on_a_device(family):
    how = {"forest": AdversarialForest(40), "speculation": Speculation(adaptive=False), "prefill_chunk": 9}
    wanted = run_core(build(family), [[5, 6, 7], list(range(2, 30))], Sampling(max_tokens=9), **how)
    with pretended_device():
        model = build(family).to(DEVICE)
        assert same_turns(wanted, run_core(model, [[5, 6, 7], list(range(2, 30))], Sampling(max_tokens=9), **how))


def test_a_sliding_window_changes_the_output():
    """Control of the first test: without the window the output differs."""
    model = build("Mistral")
    prompt = [list(range(2, 30))]
    windowed = run_core(model, prompt, Sampling(temperature=0, max_tokens=16))[0]
    for layer in model.model.layers:
        layer.self_attn.config.sliding_window = None
    assert run_core(model, prompt, Sampling(temperature=0, max_tokens=16))[0].logprobs != windowed.logprobs


def test_a_model_whose_attention_cannot_be_replaced_or_has_soft_capping_is_refused():
    config = transformers.MambaConfig(vocab_size=16, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(ValueError, match="must replace the attention of"):
        Policy(transformers.MambaForCausalLM(config))
    config = transformers.Gemma2Config(**SMALL)
    model = transformers.Gemma2ForCausalLM(config).double()
    with pytest.raises(NotImplementedError, match="soft-capping"):
        run_core(model, [[1, 2, 3]], Sampling(max_tokens=2))
