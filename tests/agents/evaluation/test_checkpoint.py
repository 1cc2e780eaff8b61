import os
import shutil
from pathlib import Path

import pytest

from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.errors import EngineFailed
from turntree.agents.evaluation.checkpoint import Checkpoint, CheckpointError
from turntree.agents.verl.run.variables import hub_variables


def test_a_model_directory_gives_tokenizer_and_size(tiny_model: Path) -> None:
    checkpoint = Checkpoint.open(str(tiny_model))
    assert checkpoint.max_positions == 512
    assert checkpoint.tokenizer.chat_template


@pytest.mark.parametrize("name", ["/no/such/model", "./model", "a/b/c", "model/step_3", "model"])
def test_a_missing_folder_is_not_looked_for_on_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    with pytest.raises(CheckpointError, match="is not a model folder"):
        Checkpoint.open(name)


def test_a_damaged_directory_and_a_model_without_a_tokenizer_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=f"{tmp_path.name}.* cannot be loaded"):
        Checkpoint.open(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(CheckpointError, match="it has no tokenizer; expected tokenizer"):
        Checkpoint.open(str(tmp_path))


def test_a_model_of_an_unreachable_hub_is_refused_in_one_line_at_once(monkeypatch, caplog):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(CheckpointError, match=r"hub cannot be reached .* not in the cache; give a model folder") as it:
        Checkpoint.open("nobody/nothing")
    assert "\n" not in str(it.value)
    assert "Retrying" not in caplog.text


def test_weights_that_are_cut_off_are_named_before_anything_loads(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    for read in (Checkpoint.open, hub_variables):
        with pytest.raises(CheckpointError, match=r"cut/model\.safetensors are damaged .*; copy the file again"):
            read(str(tmp_path / "cut"))


def test_weights_of_another_shape_are_one_line(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "other")
    config = tmp_path / "other" / "config.json"
    config.write_text(config.read_text().replace('"hidden_size": ', '"hidden_size": 1'))
    with pytest.raises(EngineFailed, match=r"^the weights of .*other do not fit its config\.json"):
        Policy.load(tmp_path / "other", dtype="float32", device="cpu")
