import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from cores import AdversarialForest, run_core, same_turns, tiny_llama
from plain_decoding import laws_along

from turntree.agents.engines.local import LocalEngineConfig, Speculation
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.local.forward.slots import SlotCache
from turntree.agents.engines.protocol import FinishReason, Sampling
from turntree.spec_tree import SpecForest

GREEDY = Sampling(temperature=0, max_tokens=16)
TREE = Speculation(max_nodes=8, max_depth=6, min_probability=0.0, adaptive=False)


def before_step(core: EngineCore, number: int, action) -> None:
    step, taken = core.step, itertools.count()

    def hooked() -> None:
        if next(taken) == number:
            action()
        step()

    core.step = hooked


def test_logprobs_are_the_models_at_the_sampling_temperature(model, prompts):
    sampling = Sampling(temperature=0.7, max_tokens=12, top_k=5)
    turns = run_core(model, prompts, sampling, forest=AdversarialForest(32), speculation=TREE)
    for prompt, turn in zip(prompts, turns, strict=True):
        p = laws_along(model, prompt, turn.token_ids, Sampling(temperature=0.7))
        np.testing.assert_allclose(turn.logprobs, np.log(p[range(12), list(turn.token_ids)]), atol=1e-9)


def test_keys_of_accepted_branches_are_moved_into_place(prompts, monkeypatch):
    """Control of the exactness tests: without the move, a second child uses its sibling's keys."""
    model, sampling = tiny_llama(sharpness=2.0), Sampling(max_tokens=16)
    plain = run_core(model, prompts, sampling)
    monkeypatch.setattr(SlotCache, "move", lambda *_: None)
    wild = run_core(model, prompts, sampling, forest=AdversarialForest(32), speculation=TREE)
    assert not same_turns(wild, plain)


def test_max_tokens_and_the_context_bound_a_turn(model, prompts):
    wild = {"forest": AdversarialForest(32), "speculation": TREE}
    short = run_core(model, prompts, Sampling(max_tokens=3), **wild)
    assert {len(t.token_ids) for t in short} == {3}
    full = run_core(model, prompts[:4], Sampling(max_tokens=99), max_context=40, **wild)
    assert [len(t.token_ids) + len(p) for t, p in zip(full, prompts, strict=False)] == [40] * 4
    assert {t.finish_reason for t in full} == {FinishReason.LENGTH}


def test_samples_of_one_prompt_and_turns_of_one_dialogue_share_keys_and_values(model, prompts):
    core = EngineCore(Policy(model), LocalEngineConfig(max_context=128, speculation=None), None)
    prompt = prompts[3]
    first = run_core(model, [prompt] * 5, Sampling(max_tokens=6), core=core)
    assert [t.cached_tokens for t in first] == [0] + [len(prompt) - 1] * 4
    following = [*prompt, *first[2].token_ids, 7, 8, 9]
    second = run_core(model, [following], Sampling(max_tokens=6, seed=5), core=core)[0]
    assert second.cached_tokens == len(prompt) + 6 - 1
    fresh = run_core(model, [following], Sampling(max_tokens=6, seed=5))[0]
    assert (fresh.cached_tokens, second.token_ids) == (0, fresh.token_ids)
    assert second.logprobs == pytest.approx(fresh.logprobs, abs=1e-9)


def test_a_prefix_is_shared_although_the_turn_that_computed_it_has_ended_in_the_same_step(model, prompts):
    first, *others = run_core(model, [prompts[3]] * 5, Sampling(max_tokens=1))
    assert [t.cached_tokens for t in (first, *others)] == [0] + [len(prompts[3]) - 1] * 4
    p = laws_along(model, prompts[3], [], Sampling())[0]
    assert [np.exp(t.logprobs[0]) for t in others] == pytest.approx([p[t.token_ids[0]] for t in others], abs=1e-9)


def test_reused_keys_matter(model, prompts):
    """Control of the test above: damaged keys change the next turn."""
    core = EngineCore(Policy(model), LocalEngineConfig(max_context=128, speculation=None), None)
    first = run_core(model, [prompts[3]], GREEDY, core=core)[0]
    with torch.inference_mode():
        for keys, _ in core.cache.layers.values():
            keys.add_(1.0)
    following = [*prompts[3], *first.token_ids, 7]
    damaged = run_core(model, [following], GREEDY, core=core)[0]
    assert damaged.logprobs != pytest.approx(run_core(model, [following], GREEDY)[0].logprobs, abs=1e-6)


def test_new_weights_are_used_at_once_and_stale_keys_are_not(prompts):
    old, new = tiny_llama(seed=0), tiny_llama(seed=1)
    target = {k: v.clone() for k, v in new.state_dict().items()}
    core = EngineCore(Policy(old), LocalEngineConfig(max_context=128, speculation=TREE), SpecForest())
    before = run_core(old, prompts, GREEDY, core=core)
    core.update_weights(target.items(), version=3)
    after = run_core(old, prompts, GREEDY, core=core)
    expected = run_core(new, prompts, GREEDY)
    assert [t.token_ids for t in after] == [t.token_ids for t in expected]
    assert [t.token_ids for t in before] != [t.token_ids for t in expected]
    assert {t.weights_version for t in after} == {3}
    assert {t.cached_tokens for t in after} == {0}
    old, new = tiny_llama(seed=0), tiny_llama(seed=1)
    core = EngineCore(Policy(old), LocalEngineConfig(max_context=128, speculation=None), None)
    before_step(core, 5, lambda: core.update_weights(new.state_dict().items(), None))
    turn = run_core(old, prompts[:1], GREEDY, core=core)[0]
    own = laws_along(new, prompts[0], turn.token_ids, GREEDY)
    assert own[5:-1].argmax(-1).tolist() == list(turn.token_ids[5:])


def test_a_wrong_weight_is_named_with_its_nearest_neighbour():
    policy = Policy(tiny_llama())
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(KeyError, match=r"did you mean 'model\.layers\.0\.self_attn\.q_proj\.weight'"):
        policy.update([(name.replace("q_proj", "qproj"), torch.zeros(32, 32))])
    with pytest.raises(ValueError, match=r"has shape \(32, 32\), got \(3,\)"):
        policy.update([(name, torch.zeros(3))])


def test_an_aborted_request_gives_its_slot_and_its_handle_back(prompts):
    forest = AdversarialForest(32)
    core = EngineCore(Policy(tiny_llama()), LocalEngineConfig(max_batch=2, max_context=128, speculation=TREE), forest)
    before_step(core, 4, core.abort_all)
    cut = run_core(core.policy.model, prompts[:2], GREEDY, core=core)
    assert {t.finish_reason for t in cut} == {FinishReason.ABORT}
    assert forest.withdrawn == 2
    assert not core.live
    assert not forest.live
    assert len(run_core(core.policy.model, prompts, GREEDY, core=core)) == len(prompts)


class Listening(SpecForest):
    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[int]] = []

    def begin(self, states, contexts=None):
        self.asked += [np.asarray(context).tolist() for context in contexts]
        return super().begin(states, contexts)


def test_a_turn_is_also_drafted_from_what_it_was_asked(prompts):
    forest = Listening()
    run_core(tiny_llama(), prompts, GREEDY, forest=forest, speculation=TREE, max_batch=3)
    assert sorted(forest.asked) == sorted(prompts)


def test_a_step_never_verifies_more_than_its_share(prompts):
    sizes = []

    class Counting(AdversarialForest):
        def draft(self, handles, *, total_nodes, **rest):
            sizes.append((len(handles), total_nodes))
            return super().draft(handles, **rest)

    run_core(tiny_llama(), prompts, GREEDY, forest=Counting(32), speculation=TREE)
    assert all(nodes == TREE.max_nodes * rows for rows, nodes in sizes)
    sizes.clear()
    few = replace(TREE, adaptive=True, max_step_nodes=5)
    run_core(tiny_llama(), prompts, GREEDY, forest=Counting(32), speculation=few)
    assert {nodes for _, nodes in sizes} <= set(range(1, 6))
