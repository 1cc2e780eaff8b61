import json
from pathlib import Path

import pytest

from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.config.sections import ConfigError, absolute


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> Path:
    # A working folder with a model, tasks, and files whose names also mean something else.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny").symlink_to(tiny_model)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"question": "How many?", "answer": "4"}))
    for name in ("train", "policy", "filter.py"):
        (tmp_path / name).touch()
    return tmp_path


def test_places_of_a_training_are_absolute_wherever_they_stand(here: Path) -> None:
    text = "turntree: {env_kwargs: {data: tasks.jsonl}}\nactor_rollout_ref: {model: {path: models/tiny}}\n"
    (here / "mine.yaml").write_text(f"defaults: [turntree_trainer, override env: gsm8k, _self_]\n{text}")
    composed = compose("mine.yaml", ["data.custom_cls.path=filter.py", "turntree.val_env_kwargs.data=tasks.jsonl"])
    settings, model = composed.settings, composed.verl.actor_rollout_ref.model
    assert (settings.env_kwargs["data"], settings.val_env_kwargs["data"]) == (str(here / "tasks.jsonl"),) * 2
    assert (model.path, composed.verl.critic.model.path) == (str(here / "models/tiny"),) * 2
    assert composed.verl.data.custom_cls.path == str(here / "filter.py")
    assert settings.env_kwargs["split"] == "train", "the name of a split, although a file has it"
    simulated_user = {"engine": "local", "model": "models/tiny"}
    assert absolute({"simulated_user": simulated_user})["simulated_user"]["model"] == str(here / "models/tiny")
    assert absolute({"model": "policy"}) == {"model": "policy"}, "the control: a name by which a program asks"


def test_what_is_not_here_stays_as_it_is_and_a_folder_that_is_no_model_is_refused(here: Path) -> None:
    left = {"path": "pkg://mine", "data": "openai/gsm8k", "file": "", "train_files": ["no.jsonl"], "lines": None}
    assert absolute(left) == left
    assert absolute({"path": "~/"}) == {"path": str(Path.home())}
    with pytest.raises(ConfigError, match=r"the model /.*/models: there is no config\.json in that folder"):
        compose("demo", ["actor_rollout_ref.model.path=models"])
