import re
from pathlib import Path

import pytest
from recorded_run import a_comparison, write_run
from tables import table

pytest.importorskip("verl")

from turntree.agents.demo import run
from turntree.agents.errors import UsageError
from turntree.agents.files import OneWriter
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.launch import StepReport


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "it's a model, (1)"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def asked(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = {}

    def warm_start(settings, *, on_step):
        seen.update(warm_start=settings)
        for step in (1, 2):
            on_step(step, 1.5)
        return model

    def train(config, overrides, *, on_step, advice):
        seen.update(advice=advice, config=config, composition=run.compose(config, overrides))
        write_run(Path(seen["composition"].settings.run_dir), tokenizer=False)
        for step in (1, 2, 3):
            metrics = {"critic/score/mean": step / 4, "timing_s/step": 1.0}
            on_step(StepReport(step=step, metrics=metrics, engine={"tokens_per_forward_pass": 2.0}))
        return seen.get("status", 0)

    def compare(composition, *, every, on_step):
        assert every == 1, "each step whose weights are there"
        with pytest.raises(UsageError, match="is being written by"):  # by a training that would clear what is compared
            OneWriter(Path(composition.settings.run_dir))
        return seen.get("comparison", a_comparison())

    monkeypatch.setattr(run, "warm_started_policy", warm_start)
    monkeypatch.setattr(run, "train", train)
    monkeypatch.setattr(run, "compare", compare)
    return seen


def test_a_run_ends_in_a_comparison_a_table_and_its_page(asked, model, tmp_path, capsys):
    out = tmp_path / "out, of 'order'"
    assert run.main(model=str(model), steps=3, out=out, seed=7, every=2) == 0
    assert "forward passes of replayed steps" in (out / "view.html").read_text()
    printed = capsys.readouterr().out
    assert "success rate" in printed
    assert "12 of 12" in printed
    for third in ("first third", "last third"):
        assert re.search(rf"{third} +│ +2\.00 \(2\.00 to 2\.00\) +│ +1\.50 \(", printed)
    assert "with and without drafts" not in printed, "where nothing differs nothing is said of it"
    assert asked["composition"].settings.save_policy_every == 2, "what is compared has its weights"
    assert asked["advice"].startswith("for a shorter run: --steps"), "an option that the demo takes"


def test_drafts_have_at_most_twelve_tokens_and_plain_decoding_stays_possible(asked, model, tmp_path):
    run.main(model=str(model), out=tmp_path / "run")
    drafting = asked["composition"].verl.actor_rollout_ref.rollout.engine_kwargs.turntree.speculation
    assert dict(drafting) == {"max_nodes": 12, "max_depth": 12}
    plain = run.compose("demo", [f"actor_rollout_ref.model.path={run.quoted(str(model))}", "speculation=[none]"])
    assert plain.verl.actor_rollout_ref.rollout.engine_kwargs.turntree.speculation is None


def test_a_models_path_reaches_verl_whole_whatever_its_characters(asked, model, tmp_path, monkeypatch):
    monkeypatch.chdir(model.parent)
    run.main(model=model.name, steps=3, out=tmp_path / "run", seed=7)
    config = asked["composition"].verl
    assert asked["warm_start"].model == config.actor_rollout_ref.model.path == str(model)
    assert (config.trainer.total_training_steps, config.actor_rollout_ref.rollout.seed) == (3, 7)


def test_a_real_models_copy_is_warm_started_on_the_dialogues_that_it_is_trained_on(asked, model, tmp_path):
    run.main(model=str(model), out=tmp_path / "run", seed=3)
    start, composition = asked["warm_start"], asked["composition"]
    assert asked["config"] == "demo_model"
    assert (start.model, start.seed) == (str(model), 3)
    assert start.env_kwargs == composition.settings.env_kwargs
    assert 1 <= composition.verl.actor_rollout_ref.rollout.max_num_seqs <= 8, "few requests at once"


def test_without_a_model_the_tiny_one_is_warm_started_in_the_environment_that_it_is_trained_in(asked, model, tmp_path):
    run.main(out=tmp_path / "run", seed=3)
    config, env_kwargs = asked["composition"].verl, asked["composition"].settings.env_kwargs
    assert asked["config"] == "demo"
    assert asked["warm_start"] == run.WarmStart(seed=3)
    assert asked["warm_start"].env_kwargs == env_kwargs
    assert config.actor_rollout_ref.model.path == str(model)
    optim = config.actor_rollout_ref.actor.optim
    assert (optim.lr_scheduler_type, config.trainer.total_training_steps) == ("cosine", 48), "it falls to the last step"
    assert optim.min_lr_ratio < 0.05
    assert env_kwargs["long_every"] == config.data.train_batch_size, "one long task a step"


def test_a_training_that_fails_is_not_reported_as_a_success(asked, model, tmp_path):
    asked["status"] = 1
    assert run.main(model=str(model), out=tmp_path / "run") == 1
    assert not (tmp_path / "run" / "view.html").exists()


def test_with_the_demos_own_policy_a_difference_is_a_failure(asked, tmp_path, capsys):
    asked["comparison"] = a_comparison(equal=3)
    assert run.main(out=tmp_path / "run") == 1
    assert "please report it" in capsys.readouterr().out


def test_with_a_given_model_a_difference_is_counted_and_explained(asked, model, tmp_path, capsys):
    asked["comparison"] = a_comparison(equal=3)
    assert run.main(model=str(model), out=tmp_path / "run") == 0
    printed = capsys.readouterr().out
    assert "3 of 12 episodes differ" in printed
    assert "near tie" in printed


@pytest.mark.parametrize(("wrong", "says"), table(__file__, "impossible_demos"))
def test_unusable_settings_are_refused_before_anything_runs(asked, model, tmp_path, wrong, says):
    with pytest.raises((ConfigError, ValueError), match=says):
        run.main(**{"model": str(model), "out": tmp_path / "run", **wrong})
    assert asked == {}
