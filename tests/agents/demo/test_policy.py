import torch
import transformers

from turntree.agents.demo.policy import PolicyShape, build_policy
from turntree.agents.demo.tokenizer import END, PAD, build_tokenizer, vocabulary

SMALL = PolicyShape(hidden=16, layers=1, heads=2, intermediate=16)


def test_the_same_seed_gives_the_same_weights_and_another_one_does_not():
    before = torch.random.get_rng_state()
    first, same, other = (
        torch.nn.utils.parameters_to_vector(build_policy(SMALL, seed=seed).parameters()) for seed in (1, 1, 2)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.random.get_rng_state()), "torch's own random state is left alone"
    assert 400_000 < sum(p.numel() for p in build_policy().parameters()) < 600_000


def test_a_saved_policy_loads_by_the_automatic_classes(tmp_path):
    model = build_policy(SMALL)
    model.save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    inputs = torch.tensor([[4, 9, 10]])
    assert torch.equal(model(inputs).logits, loaded(inputs).logits)
    assert len(tokenizer) == loaded.config.vocab_size
    assert (loaded.config.eos_token_id, loaded.config.pad_token_id) == (vocabulary()[END], vocabulary()[PAD])
