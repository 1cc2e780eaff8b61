from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from transformers import AutoModelForCausalLM

from turntree.agents.demo import warm_start
from turntree.agents.demo.demonstrations import demonstrations
from turntree.agents.demo.policy import PolicyShape, build_policy
from turntree.agents.demo.warm_start import WarmStart, train, warm_started_policy
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.sft.fit import training_tensors

SHAPE = PolicyShape(hidden=32, layers=1, heads=2, intermediate=32)
TINY = WarmStart(shape=SHAPE, demonstrations=48, steps=12, batch=16, warm_up=2)


@pytest.fixture(autouse=True)
def one_thread():
    # Threads of a model this small wait for each other if anything else runs.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNTREE_CACHE", str(tmp_path))
    return tmp_path


def test_a_few_steps_lower_the_loss_alike_and_without_a_learning_rate_they_do_not():
    falls, again, stays = [], [], []
    for settings, losses in ((TINY, falls), (TINY, again), (replace(TINY, learning_rate=0.0), stays)):
        train(settings, on_step=lambda _, loss, losses=losses: losses.append(loss))
    assert falls[-1] < 0.7 * falls[0]
    assert falls == again
    assert stays[-1] > 0.9 * stays[0]


def test_the_loss_is_the_mean_over_every_token_of_the_policys_and_no_other(tokenizer):
    view = TokenView.of(demonstrations(tokenizer, count=1)[0].episode)
    inputs, targets = training_tensors([view])
    counted = targets[targets >= 0].tolist()
    assert counted == [token for token, mine in zip(view.response_ids, view.mask, strict=True) if mine]
    assert inputs.shape == targets.shape
    views = [TokenView.of(played.episode) for played in demonstrations(tokenizer, count=12, seed=TINY.seed)]
    inputs, targets = training_tensors(views)
    logits = build_policy(SHAPE, seed=TINY.seed)(inputs).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    losses = []
    train(replace(TINY, demonstrations=12, batch=12, steps=1), on_step=lambda _, loss: losses.append(loss))
    assert losses == [pytest.approx(expected.item(), rel=1e-4)]


def test_a_second_run_finds_the_policy_in_the_cache(cache, monkeypatch):
    made = warm_started_policy(TINY)
    assert made.parent == cache
    monkeypatch.setattr(warm_start, "train", lambda *_, **__: pytest.fail("it was trained again"))
    assert warm_started_policy(TINY) == made
    assert [path.name for path in cache.iterdir()] == [made.name], "nothing unfinished is left"


def test_steps_are_reported_while_a_policy_is_trained_and_not_if_cached(cache):
    output = []
    for _ in range(2):
        warm_started_policy(TINY, on_step=lambda step, loss: output.append(step))
    assert output == list(range(1, TINY.steps + 1))


@pytest.fixture
def given(tmp_path):
    model, tokenizer = train(replace(TINY, steps=2))
    model.save_pretrained(tmp_path / "given")
    tokenizer.save_pretrained(tmp_path / "given")
    return replace(TINY, model=str(tmp_path / "given"), learning_rate=1e-3)


def test_a_given_model_learns_from_its_own_weights_on_and_stays_as_it_is(cache, given):
    before = AutoModelForCausalLM.from_pretrained(given.model).state_dict()
    losses = []
    made = warm_started_policy(given, on_step=lambda _, loss: losses.append(loss))
    after = AutoModelForCausalLM.from_pretrained(made).state_dict()
    assert losses[-1] < losses[0]
    assert all(0 < (after[name] - weights).abs().max() < 0.1 for name, weights in before.items())
    kept = AutoModelForCausalLM.from_pretrained(given.model).state_dict()
    assert all(torch.equal(kept[name], weights) for name, weights in before.items())


def test_a_given_model_whose_files_changed_is_another_one(cache, given):
    made = warm_started_policy(replace(given, steps=1))
    assert warm_started_policy(replace(given, steps=1)) == made
    (Path(given.model) / "config.json").touch()
    assert warm_started_policy(replace(given, steps=1)) != made


def test_a_given_model_is_asked_for_few_demonstrations_in_small_steps():
    settings = WarmStart.of_model("model", {"limits": {}}, seed=3)
    assert (settings.model, settings.seed, settings.env_kwargs) == ("model", 3, {"limits": {}})
    assert settings.learning_rate < WarmStart().learning_rate / 10
    assert settings.steps * settings.batch < 1000
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        WarmStart(steps=0)


def test_a_broken_training_leaves_nothing_in_the_cache(cache, monkeypatch):
    monkeypatch.setattr(warm_start, "train", Mock(side_effect=RuntimeError("interrupted")))
    with pytest.raises(RuntimeError, match="interrupted"):
        warm_started_policy(TINY)
    assert list(cache.iterdir()) == []
