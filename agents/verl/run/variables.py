"""Environment variables of a run: for verl's driver, and for Ray's workers.

If the run starts Ray, Ray's workers inherit the driver's variables. If the run joins a running cluster, the workers
have the variables of the process that started the cluster, perhaps on another machine. ``runtime_env.env_vars`` then
passes on the variables that a training depends on.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from turntree.agents.evaluation.checkpoint import check_weights
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.records import phases
from turntree.agents.verl.records.recording import RunFolder
from turntree.envs.data.hub import hub_asked_once

INIT = "ray_kwargs.ray_init"
#: variables that workers of a running cluster get through ``runtime_env``
_PASSED_ON = (
    "PYTHONPATH",
    "TENSORBOARD_DIR",
    "TOKENIZERS_PARALLELISM",
    "TURNTREE_DATA",
    phases.VARIABLE,
    "TURNTREE_VERL_CPU",
    "VERL_FILE_LOGGER_PATH",
    "VERL_LOGGING_LEVEL",
    "WANDB_DIR",
    "WANDB_MODE",
)
#: variables with folders; made absolute, because verl's processes run in another folder than the caller
_FOLDERS = ("TURNTREE_CACHE", "TURNTREE_DATA")
#: arguments that ``ray.init`` refuses when it joins a cluster
_NEW_RAY_ONLY = ("num_cpus", "num_gpus", "object_store_memory")


class ModelUnavailable(ConfigError):
    """Raised if a model is neither a folder nor available from the Hugging Face Hub."""


def joins_cluster(config: DictConfig) -> bool:
    """Return whether the run joins a running Ray cluster, decided as ``ray.init`` decides."""
    address = OmegaConf.select(config, f"{INIT}.address") or os.environ.get("RAY_ADDRESS")
    return address not in (None, "", "local")


def environment(folder: RunFolder, device: str, names: Iterable[str] = (), *, joins: bool = False) -> dict[str, str]:
    """Return a driver's environment variables; variables that the caller has set take precedence.

    Args:
        device: verl's ``trainer.device``.
        names: Environments and rewards. A name may be ``MODULE:NAME``; ``PYTHONPATH`` then gets the folder where this
            process finds the module, such as a script's folder or the working folder.
        joins: Whether the run joins a running Ray cluster.
    """
    cores = str(os.cpu_count() or 1)
    defaults = {
        "PYTHONUNBUFFERED": "1",
        "HYDRA_FULL_ERROR": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VERL_LOGGING_LEVEL": "WARN",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_worker_niceness": "0",
        "TQ_NUM_THREADS": cores,
        # Ray would start one worker per pretended core at once; verl starts only the few workers that it needs.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
    }
    if device == "cpu":
        defaults["TURNTREE_VERL_CPU"] = "1"  # even if the machine has an accelerator
        defaults["OMP_NUM_THREADS"] = cores  # with GPUs it stays unset, so that vLLM limits its workers' threads
    elif joins:
        defaults["TURNTREE_VERL_CPU"] = "0"  # this node may lack an accelerator that other nodes have
    if joins:  # the cluster's workers have another working folder
        defaults |= {"TENSORBOARD_DIR": str(folder.root / "tensorboard_log"), "WANDB_DIR": str(folder.root)}
    fixed = {"VERL_FILE_LOGGER_PATH": str(folder.metrics), phases.VARIABLE: str(folder.phases)}
    modules = [name.partition(":")[0].partition(".")[0] for name in names if ":" in name]
    fixed |= {name: os.path.abspath(os.environ[name]) for name in _FOLDERS if os.environ.get(name)}
    if modules:
        given = map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
        fixed["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*given, *map(_folder_of, modules)]))
    return {**defaults, **os.environ, **fixed}


def hub_variables(model: str) -> dict[str, str]:
    """Return the variables that make verl's processes use only the Hub's cache if the Hub cannot be reached.

    Raises:
        ModelUnavailable: If the model is neither a folder nor available from the Hugging Face Hub.
        CheckpointError: If the model is a folder with damaged weights.
    """
    if Path(model).is_dir():
        check_weights(Path(model))
    if Path(model).is_dir() or "://" in model:
        return {}
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        with hub_asked_once() as offline:  # why the Hub cannot be reached; ``None`` if it can
            if isinstance(try_to_load_from_cache(model, "config.json"), str):
                return {} if offline is None else {"HF_HUB_OFFLINE": "1"}
            if offline is None:
                hf_hub_download(
                    model, "config.json"
                )  # verl's processes would download the file, and fail, only minutes later
                return {}
            why = f"{offline}, and it is not in the cache"
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
    raise ModelUnavailable(
        f"the model {model}: there is no such folder in {Path.cwd()}, and it is not available from the Hugging Face "
        f"Hub: {why}; give the folder of a model"
    )


def fit_cluster(config: DictConfig, driver: Mapping[str, str]) -> None:
    """Configure a run to join a cluster: pass variables to the workers, drop settings that only a new Ray accepts."""
    section = f"{INIT}.runtime_env.env_vars"
    passed_on = {name: driver[name] for name in _PASSED_ON if name in driver}
    OmegaConf.update(config, section, {**passed_on, **(OmegaConf.select(config, section) or {})}, force_add=True)
    for name in _NEW_RAY_ONLY:
        if OmegaConf.select(config, f"{INIT}.{name}") is not None:
            OmegaConf.update(config, f"{INIT}.{name}", None)


def _folder_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"{module} was imported before"
    if spec.submodule_search_locations:
        return str(Path(spec.submodule_search_locations[0]).absolute().parent)
    return str(Path(spec.origin or "").absolute().parent)
