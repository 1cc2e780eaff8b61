from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from cores import AdversarialForest, run_core, same_turns, tiny_llama
from pretended_device import DEVICE, OnDevice, pretended_device
from tables import table

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation, sampling
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.protocol import Completion, Sampling, Scores
from turntree.spec_tree import DialogueState

KINDS = [Sampling(max_tokens=9, top_logprobs=i % 3, **kind) for i, kind in enumerate(table(__file__, "samplings"))]
TREES = Speculation(max_depth=5, adaptive=False)
LONG = list(range(2, 30))


def play(model: torch.nn.Module, prompts: Sequence[Sequence[int]], **settings: Any) -> list[Completion]:
    """Draw turns in every way, from trees at random positions and callers' drafts."""
    many = [prompts[i % len(prompts)] for i in range(len(KINDS))]
    return run_core(
        model, many, lambda i: KINDS[i], forest=AdversarialForest(32), speculation=TREES, max_batch=6, dtype="float64",
        arrivals=lambda i: i // 2, turn_drafts=lambda i: LONG[: 3 * (i % 3)], **settings,
    )  # fmt: skip


def score(core: EngineCore, prompt: Sequence[int], tokens: Sequence[int]) -> Scores:
    """Score tokens while another turn is drawn."""
    done: list[Scores] = []
    how = {"prompt": list(prompt), "seed": 0, "state": DialogueState.from_tokens(prompt), "turn_draft": list(tokens)}
    how["sampling"] = Sampling(top_p=0.9, top_logprobs=3, max_tokens=20)
    core.add(Request(**how, deliver=lambda request: None))
    core.add(Request(**how, scoring=True, deliver=lambda request: done.append(request.scores())))
    while core.busy:
        core.step()
    return done[0]


def test_a_device_says_what_the_cpu_says(prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    # Draws only at the nodes of the walk; the test of a sleeping engine below draws at all nodes.
    monkeypatch.setattr(sampling, "EAGER", 0)
    wanted = play(tiny_llama(), prompts)
    with pretended_device():
        found = play(tiny_llama().to(DEVICE), prompts)
    assert same_turns(wanted, found)
    assert sum(turn.draft.accepted for turn in found) > 0
    assert any(turn.top is not None for turn in found)


def test_turns_are_scored_on_a_device_after_new_weights_from_the_cpu(prompts: list[list[int]]) -> None:
    config = LocalEngineConfig(max_context=128, dtype="float64", prefill_chunk=6)
    wanted = score(EngineCore(Policy(tiny_llama(seed=1)), config, None), prompts[1], LONG)
    with pretended_device():
        core = EngineCore(Policy(tiny_llama().to(DEVICE)), config, None)
        score(core, prompts[1], LONG)
        core.update_weights(tiny_llama(seed=1).state_dict().items(), version=1)
        found = score(core, prompts[1], LONG)
    assert (found.logprobs, found.entropy) == (wanted.logprobs, wanted.entropy)


def test_logits_of_half_precision_are_drawn_from_in_single_precision(prompts: list[list[int]]) -> None:
    wanted = play(tiny_llama(dtype=torch.bfloat16), prompts)
    with pretended_device():
        assert same_turns(wanted, play(tiny_llama(dtype=torch.bfloat16).to(DEVICE), prompts))


@pytest.mark.parametrize(
    "mixes",
    [lambda w: w + torch.ones(32), lambda w: w[torch.zeros(1, dtype=torch.int64)], lambda w: w.numpy()],
    ids=["operands", "indices", "numpy"],
)
def test_what_does_not_lie_on_the_device_is_noticed(mixes: Any) -> None:
    """Control: the pretended device refuses CPU tensors."""
    with pretended_device(), pytest.raises(RuntimeError, match=r"same device|numpy"):
        mixes(tiny_llama().model.norm.weight.to(DEVICE))


def weights_on_device(core: EngineCore) -> bool:
    (kind,) = {type(weight.data) for weight in core.policy.model.parameters()}
    return kind is OnDevice


def test_an_engine_that_sleeps_holds_nothing_on_the_device_and_resumes_where_it_was(prompts: list[list[int]]) -> None:
    wanted = play(tiny_llama(), prompts)
    with pretended_device():
        core = EngineCore(
            Policy(tiny_llama().to(DEVICE)),
            LocalEngineConfig(max_context=128, dtype="float64", max_batch=6, speculation=TREES),
            AdversarialForest(32),
        )
        assert same_turns(wanted, play(core.policy.model, prompts, core=core))
        assert core.cache.bytes > 0
        core.sleep()
        assert (core.cache.bytes, core.busy, weights_on_device(core)) == (0, False, False)
        core.update_weights(tiny_llama(seed=1).state_dict().items(), version=1)
        core.wake()
        assert weights_on_device(core)
        found = play(core.policy.model, prompts, core=core)
    assert same_turns(play(tiny_llama(seed=1), prompts), found)


def test_a_turn_that_an_engine_falls_asleep_over_is_finished_when_it_wakes(prompts: list[list[int]]) -> None:
    core = EngineCore(Policy(tiny_llama()), LocalEngineConfig(max_context=128, dtype="float64", speculation=None), None)
    done: list[Completion] = []
    for i, prompt in enumerate(prompts):
        how = Sampling(max_tokens=12)
        state = DialogueState.from_tokens(prompt)
        deliver = lambda request: done.append(request.completion())  # noqa: E731
        core.add(Request(prompt=prompt, sampling=how, state=state, seed=i, turn_draft=[], deliver=deliver))
    for _ in range(4):
        core.step()
    core.sleep()
    assert not core.busy
    core.wake()
    while core.busy:
        core.step()
    alone = run_core(tiny_llama(), prompts, Sampling(max_tokens=12))
    assert sorted(turn.token_ids for turn in done) == sorted(turn.token_ids for turn in alone)


def test_keys_and_values_fit_into_the_memory_that_is_given(prompts: list[list[int]]) -> None:
    policy = Policy(tiny_llama())
    assert policy.token_bytes() == 2 * 2 * 2 * 8 * 8  # keys and values, layers, key heads, their size, bytes of float64
    memory = policy.weight_bytes + 7 * 136 * policy.token_bytes()
    config = LocalEngineConfig(max_context=128, dtype="float64", max_batch=4, memory_bytes=memory)
    with LocalEngine(policy, config=config) as engine:
        assert (engine.config.max_batch, engine.config.parked_slots) == (4, 3)
    assert replace(config, memory_bytes=memory // 2).fitted(weights=0, token=memory // (136 * 6)).slots == 3
    with pytest.raises(ValueError, match="give the engine more memory"):
        LocalEngine(policy, config=replace(config, memory_bytes=policy.weight_bytes))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match=r"device=cuda needs a GPU, .* sees none .*; use device=cpu or auto"):
        Policy.load(tmp_path, dtype="float32", device="cuda")


def test_auto_takes_the_cpu_where_there_is_no_gpu(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_llama().save_pretrained(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Policy.load(tmp_path, dtype="float32", device="auto").device == torch.device("cpu")
