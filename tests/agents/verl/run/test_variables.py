import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from omegaconf import OmegaConf

from turntree.agents.verl import launch
from turntree.agents.verl.config.compose import Composition
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.run import variables
from turntree.agents.verl.run.variables import environment, hub_variables


def test_the_callers_environment_goes_first_but_for_the_metrics(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "/elsewhere")
    variables = environment(RunFolder(tmp_path), "cpu")
    assert (variables["OMP_NUM_THREADS"], variables["RAY_USAGE_STATS_ENABLED"]) == ("7", "0")
    assert variables["VERL_FILE_LOGGER_PATH"] == str(tmp_path / "metrics.jsonl")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert "OMP_NUM_THREADS" in environment(RunFolder(tmp_path), "cpu")
    assert "OMP_NUM_THREADS" not in environment(RunFolder(tmp_path), "cuda")


def test_verls_processes_find_the_modules_and_folders_that_were_found_here(monkeypatch, tmp_path):
    (tmp_path / "envs" / "deep_package" / "inner").mkdir(parents=True)
    (tmp_path / "envs" / "deep_package" / "__init__.py").touch()
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "flat_module.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "envs")
    monkeypatch.syspath_prepend(tmp_path / "rewards")
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    names = ("deep_package.inner:Env", "answer", "flat_module:mine", "flat_module:other")
    paths = environment(RunFolder(tmp_path), "cpu", names)["PYTHONPATH"].split(os.pathsep)
    assert paths == ["/theirs", str(tmp_path / "envs"), str(tmp_path / "rewards")]
    assert environment(RunFolder(tmp_path), "cpu", ["answer"])["PYTHONPATH"] == "/theirs"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TURNTREE_DATA", "shared")
    monkeypatch.setenv("PYTHONPATH", "src")
    given = environment(RunFolder(tmp_path / "run"), "cpu", ["trained_envs:Talking"])
    assert given["TURNTREE_DATA"] == str(tmp_path / "shared")
    assert given["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "src")


@pytest.mark.parametrize(
    ("device", "joins", "choice"), [("cpu", False, "1"), ("cuda", False, None), ("cpu", True, "1"), ("cuda", True, "0")]
)
def test_a_training_on_the_cpu_leaves_accelerators_alone_and_one_on_a_cluster_has_them_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, joins: bool, choice: str | None
) -> None:
    monkeypatch.delenv("TURNTREE_VERL_CPU", raising=False)
    assert environment(RunFolder(tmp_path), device, joins=joins).get("TURNTREE_VERL_CPU") == choice


@pytest.fixture
def init(composed: Callable[..., Composition], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    # The arguments of ``ray.init`` in a run with these overrides.
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def prepared(*more: str) -> Any:
        folder = RunFolder(tmp_path / "run")
        folder.root.mkdir()
        launch.prepare(composed(f"turntree.run_dir={folder.root}", *more), folder, tmp_path / "ray")
        return OmegaConf.load(folder.config).ray_kwargs.ray_init

    return prepared


def test_workers_of_a_cluster_are_handed_what_a_training_depends_on(init: Callable[..., Any], tmp_path: Path) -> None:
    given = init(
        "ray_kwargs.ray_init.address=auto",
        "+ray_kwargs.ray_init.runtime_env.env_vars={MINE: '1', VERL_LOGGING_LEVEL: DEBUG}",
        *("turntree.env=trained_envs:Talking", "turntree.env_kwargs={}", "turntree.val_env_kwargs={}"),
    )
    handed = given.runtime_env.env_vars
    assert str(tmp_path / "run" / "metrics.jsonl") == handed.VERL_FILE_LOGGER_PATH
    assert str(Path(__file__).parents[3] / "support") in handed.PYTHONPATH.split(os.pathsep)
    assert ("1", str(tmp_path / "run" / "tensorboard_log")) == (handed.TURNTREE_VERL_CPU, handed.TENSORBOARD_DIR)
    assert (handed.MINE, handed.VERL_LOGGING_LEVEL) == ("1", "DEBUG"), "what the caller hands over stays"
    assert "PATH" not in handed, "the rest is the cluster's own"


@pytest.mark.parametrize("variable", [None, "10.0.0.1:6379"], ids=["by its address", "by the variable"])
def test_a_cluster_that_runs_is_not_told_how_large_it_is(init, monkeypatch, variable):
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    given = init(*([] if variable else ["ray_kwargs.ray_init.address=auto"]))
    assert "_temp_dir" not in given
    assert {given.num_cpus, given.num_gpus, given.object_store_memory} == {None}
    assert given.runtime_env.get("py_executable") is None, "its workers are no forks of this process"


def test_a_ray_of_its_own_inherits_everything(init: Callable[..., Any]) -> None:
    given = init("ray_kwargs.ray_init.address=local")
    assert (given.num_cpus, "env_vars" in given.runtime_env) == (8, False)


@pytest.fixture
def off_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_training_whose_model_cannot_be_had_ends_before_anything_is_started(off_line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"the model nobody/nothing: .* cannot be reached .* not in the cache"):
        launch.train("demo", ["actor_rollout_ref.model.path=nobody/nothing"])
    assert not list(tmp_path.iterdir())


def test_verls_processes_keep_to_the_cache_if_the_hub_cannot_be_reached(off_line, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: "config.json")
    assert hub_variables("somebody/something") == {"HF_HUB_OFFLINE": "1"}
    assert hub_variables(str(tmp_path)) == {}
    monkeypatch.setattr(variables, "hub_asked_once", nullcontext)
    assert hub_variables("somebody/something") == {}, "the control: a Hub that answers"


def test_a_model_that_the_hub_does_not_have_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "hub_asked_once", nullcontext)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", Mock(side_effect=OSError("404\nRepository Not Found")))
    for name, why in (("nobody/nothing", "404 Repository Not Found"), ("a/b/c", "Repo id must be")):
        with pytest.raises(
            ConfigError,
            match=rf"the model {name}: there is no such folder in .* not available from the Hugging Face Hub: {why}",
        ):
            hub_variables(name)
