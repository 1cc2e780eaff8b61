import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tables import table

from turntree.agents.cli import main
from turntree.agents.commands import gpu_check
from turntree.agents.commands.gpu_check import examine_gpus, examine_training, pins_of
from turntree.agents.commands.installation import Finding, Health, examine
from turntree.agents.verl.start import check_start

pytest.importorskip("verl", reason='training needs verl: pip install -e ".[train]"')
PINS = {"verl": "0.9.1", "torch": "2.11.0+cu130", "transformers": "5.9.0", "vllm": "0.24.0", "flash-attn": "2.8.3"}
TRAINING = ["engine=vllm", "size=7b", "env=arithmetic"]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    versions = dict(PINS)
    monkeypatch.setattr(gpu_check, "version_of", versions.get)
    for name in ("flash_attn", "flash_attn.bert_padding"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr("torch.version.cuda", "13.0")
    give_gpus(monkeypatch, 8)
    return versions


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: "config.json")


def give_gpus(monkeypatch: pytest.MonkeyPatch, count: int, memory: int = 80_000_000_000) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(total_memory=memory, name="GPU"))


def found(engine: str | None = "vllm") -> dict[str, Finding]:
    return {finding.part: finding for finding in examine_gpus(engine)}


def device() -> Finding:
    return next(finding for finding in examine() if finding.part.startswith("device cuda"))


def of_training(*options: str) -> dict[str, Finding]:
    return {finding.part: finding for finding in examine_training(check_start(TRAINING[0], [*TRAINING[1:], *options]))}


def test_the_pins_are_read_from_the_installed_verl_and_a_machine_with_all_is_well(installed: dict[str, str]) -> None:
    assert {"torch": "2.11.0", "vllm": "0.24.0", "transformers": "5.9.0"}.items() <= pins_of("vllm").items()
    assert pins_of("sglang")["sglang"] == "0.5.12"
    assert "vllm" not in pins_of("sglang")
    assert {finding.health for finding in examine_gpus("vllm")} == {Health.OK}
    assert {finding.part for finding in examine_gpus("turntree")} == {f"pin {name}" for name in NEEDED}


NEEDED = ("torch", "transformers", "flash-attn")


@pytest.mark.parametrize(("package", "version", "says"), table(__file__, "not_pinned"))
def test_what_is_missing_is_named_with_verls_pin(package, version, says, installed):
    installed.pop(package)
    if version:
        installed[package] = version
    finding = found()[f"pin {package}"]
    assert (finding.health, finding.what) == (Health.MISSING, says)
    assert "requirements/gpu-vllm.txt" in finding.fix


def test_a_wrong_flash_attention_a_build_without_cuda_and_a_missing_driver_are_reported(installed, monkeypatch):
    assert not found()["pin flash-attn"].fix
    monkeypatch.setitem(sys.modules, "flash_attn.bert_padding", None)
    assert found()["pin flash-attn"].health is Health.BROKEN
    assert found()["pin flash-attn"].fix.endswith("use_remove_padding=false and sdpa")
    give_gpus(monkeypatch, 0)
    assert "built for CUDA 13.0 and finds no GPU" in device().what
    monkeypatch.setattr("torch.version.cuda", None)
    assert "built without CUDA" in device().what


def test_the_memory_of_each_phase_is_printed_for_the_gpus_that_are_here(installed, monkeypatch):
    names = ("rollout", "log-probabilities", "update", "weight transfer", "cache")
    assert {of_training()[f"memory: {name}"].health for name in names} == {Health.OK}
    give_gpus(monkeypatch, 4, memory=24_000_000_000)
    small = of_training()
    assert small["memory: update"].health is Health.BROKEN
    assert "of 24 GB" in small["memory: update"].what
    assert "less than 10 % would stay free" in small["memory: update"].fix
    assert small["GPUs"][1:3] == (Health.MISSING, "trainer.n_gpus_per_node=8, found 4")


def test_a_model_of_unknown_shape_is_reported_as_unknown() -> None:
    found = of_training("actor_rollout_ref.model.path=nobody/model")["memory"]
    assert "shape of nobody/model is not known" in found.what


def test_the_models_folder_is_looked_at(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = of_training(f"actor_rollout_ref.model.path={tiny_model}")["model"]
    assert (here.health, here.what) == (Health.OK, str(tiny_model))
    (tmp_path / "config.json").write_text((tiny_model / "config.json").read_text())
    bare = of_training(f"actor_rollout_ref.model.path={tmp_path}")["start"]
    assert (bare.health, "has no weights" in bare.fix) == (Health.BROKEN, True)
    assert of_training()["model"].health is Health.OK
    config_alone = lambda _, file: file if file == "config.json" else None  # noqa: E731
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", config_alone)
    assert of_training()["model"].health is Health.MISSING


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--config", *TRAINING], 0),
        (["--config", *TRAINING, "actor_rollout_ref.rollout.gpu_memory_utilization=0.95"], 1),
        (["--gpu"], 1),
        (["--config", *TRAINING, "actor_rollout_ref.rollout.tensor_model_parallel_size=3"], 1),
        (["--config", "demo", "actor_rollout_ref.model.path=MODEL"], 0),
    ],
)
def test_the_exit_status_shows_whether_a_training_can_start(arguments, status, tiny_model, capsys):
    words = [word.replace("MODEL", str(tiny_model)) for word in arguments]
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--json", *words])
    rows = json.loads(capsys.readouterr().out)
    assert stopped.value.code == status, [row for row in rows if row["health"] == "broken"]


def test_options_without_a_configuration_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "size=7b"])
    assert "pass the first option with --config" in capsys.readouterr().err


def test_without_a_gpu_what_gpus_need_is_not_there(installed, monkeypatch, capsys) -> None:
    for count, status in ((8, 0), (0, 1)):
        give_gpus(monkeypatch, count)
        with pytest.raises(SystemExit) as stopped:
            main(["doctor", "--json", "--gpu"])
        assert stopped.value.code == status, capsys.readouterr().out
