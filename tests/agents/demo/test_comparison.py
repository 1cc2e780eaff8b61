from dataclasses import replace

import pytest
from recorded_run import EARLY, RIGHT, a_comparison, write_run

pytest.importorskip("verl")

from turntree.agents.demo import comparison
from turntree.agents.demo.compared import Comparison, seconds_saved, speedup
from turntree.agents.demo.comparison import compare
from turntree.agents.demo.policy import PolicyShape, build_policy
from turntree.agents.demo.tokenizer import build_tokenizer
from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.records.recording import RunFolder, save_weights

SCRIPTS = (RIGHT, RIGHT, EARLY, EARLY)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    root = write_run(tmp_path_factory.mktemp("run"), scripts=SCRIPTS)
    model = build_policy(PolicyShape(hidden=16, layers=1, heads=2, intermediate=16))
    model.save_pretrained(root / "model")
    build_tokenizer().save_pretrained(root / "model")
    for step in (1, 2, 3):
        save_weights(RunFolder(root).weights(step), model.state_dict().items())
    drafting = "actor_rollout_ref.rollout.engine_kwargs.turntree.speculation"
    return compose(
        "demo",
        [
            f"actor_rollout_ref.model.path={root / 'model'}",
            f"turntree.run_dir={root}",
            # Drafts whatever the machine's timings say, so that there is something to be equal.
            f"{drafting}={{adaptive: false, min_probability: 0.0}}",
        ],
    )


def test_both_ways_say_the_same_and_drafts_take_fewer_passes(recorded):
    seen = []
    compared = compare(recorded, every=2, on_step=seen.append)
    assert [step.step for step in compared.steps] == [1, 3], "every second one, and the last"
    assert list(compared.steps) == seen
    assert compared.equal
    for step in compared.steps:
        assert step.equal == step.episodes == len(SCRIPTS)
        assert step.speculative.tokens == step.plain.tokens > 0
        assert (step.plain.tokens_per_forward_pass, step.plain.drafted) == (1.0, 0)
    again = compared.steps[-1]
    assert again.speculative.accepted > 0, "the same seeds and weights have been played before"
    assert again.speculative.forward_passes < again.plain.forward_passes


def test_episodes_that_differ_are_counted(recorded, monkeypatch):
    play, first = comparison.rollout, []

    async def with_other_noise_in_one_engine(env, engine, *args, sampling, **kwargs):
        first[:] = first or [engine]
        seed = sampling.seed + 1000 * (engine is first[0])
        return await play(env, engine, *args, sampling=replace(sampling, seed=seed), **kwargs)

    monkeypatch.setattr(comparison, "rollout", with_other_noise_in_one_engine)
    compared = compare(recorded)
    assert not compared.equal
    assert all(step.equal < step.episodes for step in compared.steps)


def test_a_run_without_weights_names_the_setting(recorded, tmp_path):
    write_run(tmp_path)
    empty = replace(recorded, settings=replace(recorded.settings, run_dir=str(tmp_path)))
    with pytest.raises(FileNotFoundError, match="save_policy_every=1"):
        compare(empty)


def test_the_speedup_weighs_steps_by_their_time():
    steps = [*a_comparison(seconds=1.0).steps[:1], *a_comparison(seconds=0.5).steps[:1]]
    assert speedup(steps) == pytest.approx(2.0)
    assert len(a_comparison().last_third) == 1


def test_the_ratios_of_both_thirds_have_the_scatter_of_their_steps(tmp_path):
    step, taken = a_comparison().steps[0], (1.5, 1.5, 1.5, 1.0, 1.0, 1.0, 0.5, 1.0, 1.5)
    costs = [replace(step.speculative, seconds=seconds) for seconds in taken]
    compared = Comparison(steps=tuple(replace(step, step=n, speculative=cost) for n, cost in enumerate(costs)))
    assert seconds_saved(compared.last_third) == (1.5, 1.25, 2.25), "1.5 seconds each without drafts"
    assert seconds_saved(compared.first_third) == (1.0, 1.0, 1.0)
    compared.save(tmp_path / "comparison.jsonl")
    assert Comparison.load(tmp_path / "comparison.jsonl") == compared
