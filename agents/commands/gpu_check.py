"""Checks of a training: its GPU packages, memory and model. Nothing is started.

Of a model on the Hugging Face hub, only the configuration is downloaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turntree.agents.commands.installation import Finding, Health
from turntree.agents.evaluation.machine import version_of

if TYPE_CHECKING:
    from turntree.agents.verl.start import Start

#: ``rollout.name`` -> verl's extra that pins the engine
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "turntree": None}
_FLASH = "flash-attn"
#: a cached model has one of these; the cache may hold only its configuration
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_HOW = "make gpu-env, or the pins of requirements/gpu-{}.txt"


def pins_of(extra: str) -> dict[str, str]:
    """Return the versions that an extra of the installed verl pins, by distribution; empty without verl."""
    from packaging.requirements import Requirement

    try:
        required = [Requirement(line) for line in metadata.requires("verl") or ()]
    except metadata.PackageNotFoundError:
        return {}
    pins = {}
    for requirement in required:
        if (
            requirement.marker is not None
            and requirement.marker.evaluate({"extra": extra})
            and not requirement.marker.evaluate({"extra": ""})
        ):
            for specifier in requirement.specifier:
                if specifier.operator == "==":
                    pins[requirement.name] = specifier.version
    return pins


def examine_gpus(engine: str | None) -> Iterator[Finding]:
    """Check the packages that GPU training needs.

    Args:
        engine: ``rollout.name``; ``None`` checks the external engines that are installed.
    """
    engines = [engine] if engine else [name for name in _ENGINES if _ENGINES[name] and version_of(name)] or ["vllm"]
    for name in engines:
        extra = _ENGINES.get(name) or "vllm"
        pins = pins_of(extra)
        for package in ("torch", "transformers", *([name] if _ENGINES.get(name) else [])):
            yield _pinned(package, pins.get(package), _HOW.format(extra))
    flash = next((pins_of(extra)[_FLASH] for extra in _flash_extras()), None)
    yield from _flash_attention(_pinned(_FLASH, flash, f"its wheel is named in requirements/gpu-{extra}.txt"))


def examine_training(start: Start) -> Iterator[Finding]:
    for problem in start.problems:
        yield Finding("start", Health.BROKEN, "the training cannot start", _line(problem))
    config = start.composition.verl
    if not start.problems:
        yield Finding("start", Health.OK, f"{start.composition.choice.name} can start")
        yield _model(str(config.actor_rollout_ref.model.path))
    if config.trainer.device == "cpu":
        yield Finding("memory", Health.OK, "not estimated for CPU training")
    else:
        yield from _memory(config)


def report_check(config: str, overrides: Sequence[str], out: Path | None) -> int:
    """Print what a training would start with, and return the exit status.

    Args:
        out: File for verl's whole configuration, written if the training could start.

    Returns:
        0 if the training could start, 2 if ``train`` would refuse it, 1 if it would not fit into memory.
    """
    import typer

    from turntree.agents.files import write_whole
    from turntree.agents.verl.config.sections import ConfigError
    from turntree.agents.verl.start import check_start

    with _warnings_shown():
        try:
            start = check_start(config, overrides)
        except ConfigError as error:
            for line in error.others:
                typer.echo(f"turntree: {line}", err=True)
            raise
    for line in start.summary():
        typer.echo(line)
    findings = [finding for finding in examine_training(start) if finding.part != "start"]
    for part, _, what, fix in findings:
        typer.echo(f"{part}: {what}{fix and f'; to do: {fix}'}")
    for problem in start.problems:
        typer.echo(f"turntree: {_line(problem)}", err=True)
    if start.problems:
        return 2
    typer.echo("verl keys that differ from verl's defaults:")
    for line in start.changed:
        typer.echo(f"  {line}")
    if out is not None:
        write_whole(out, start.yaml())
        typer.echo(f"verl's whole configuration: {out}")
    return int(any(finding.health is Health.BROKEN for finding in findings))


@contextmanager
def _warnings_shown() -> Iterator[None]:
    ours = logging.getLogger("turntree.agents.verl.config")
    before = ours.level
    ours.setLevel(logging.WARNING)
    try:
        yield
    finally:
        ours.setLevel(before)


def _line(problem: Exception) -> str:
    return " ".join(str(problem).split())


def _pinned(package: str, pin: str | None, fix: str) -> Finding:
    # A local version label such as +cu130 is ignored.
    found = version_of(package)
    wanted = f"verl {version_of('verl')} pins {pin}" if pin else "verl's pin is unknown because verl is not installed"
    if found is None:
        return Finding(f"pin {package}", Health.MISSING, f"not installed; {wanted}", fix)
    if pin is not None and found.partition("+")[0] != pin:
        return Finding(f"pin {package}", Health.MISSING, f"{found} is installed; {wanted}", fix)
    return Finding(f"pin {package}", Health.OK, f"{found}; {wanted}")


def _flash_extras() -> list[str]:
    try:
        extras = metadata.metadata("verl").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []
    return [extra for extra in extras if _FLASH in pins_of(extra)]


def _flash_attention(pinned: Finding) -> Iterator[Finding]:
    # verl needs it for use_remove_padding; without it a training uses PyTorch's attention.
    from turntree.agents.verl.config.trainer_config import flash_attention_error

    if pinned.health is Health.OK and (error := flash_attention_error()):
        what, fix = (
            f"{pinned.what}, but it cannot be imported: {error}",
            "install the wheel for this torch, CUDA and Python",
        )
        pinned = Finding(pinned.part, Health.BROKEN, what, fix)
    if pinned.health is not Health.OK:
        pinned = pinned._replace(fix=f"{pinned.fix}; until then, trainings use use_remove_padding=false and sdpa")
    yield pinned


def _memory(config: Any) -> Iterator[Finding]:
    from turntree.agents.verl.config.sections import ConfigError
    from turntree.agents.verl.memory.phases import CARD, SPARE, estimate

    gpus, here = _gpus_here()
    wanted = config.trainer.n_gpus_per_node
    if here:
        what = f"trainer.n_gpus_per_node={wanted}, found {here}"
        enough = here >= wanted
        fix = "" if enough else "choose a smaller size, or set trainer.n_gpus_per_node"
        yield Finding("GPUs", Health.OK if enough else Health.MISSING, what, fix)
    try:
        found = estimate(config, min(gpus) if gpus else CARD)
    except ConfigError as error:
        yield Finding("memory", Health.MISSING, f"not estimated: {error}", "name a model of known shape")
        return
    for name, parts in found.phases.items():
        listed = ", ".join(f"{part} {size / 1e9:.1f}" for part, size in parts.items() if size)
        total = sum(parts.values())
        health = Health.OK if total <= (1 - SPARE) * found.gpu else Health.BROKEN
        what = f"{total / 1e9:.1f} of {found.gpu / 1e9:.0f} GB: {listed}"
        yield Finding(f"memory: {name}", health, what, _less(health))
    rollout = found.rollout
    cache = f"{rollout.tokens:,} tokens: {found.episodes:,} episodes of {rollout.context:,} at once"
    full = Health.OK if found.episodes else Health.BROKEN
    yield Finding("memory: cache", full, cache, _less(full))
    if found.host:
        yield Finding("memory: host", Health.OK, f"{found.host / 1e9:,.0f} GB per node for offloaded data")


def _less(health: Health) -> str:
    if health is Health.OK:
        return ""
    return (
        "less than 10 % would stay free: lower actor_rollout_ref.rollout.gpu_memory_utilization, max_num_seqs or "
        "ppo_max_token_len_per_gpu, offload (fsdp_config), or use more GPUs"
    )


def _gpus_here() -> tuple[Sequence[int], int]:
    try:
        import torch
    except (ImportError, OSError, RuntimeError):
        return (), 0
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.get_device_properties(number).total_memory for number in range(count)], count


def _model(name: str) -> Finding:
    if Path(name).expanduser().is_dir():
        return Finding("model", Health.OK, name)
    from huggingface_hub import try_to_load_from_cache

    if any(isinstance(try_to_load_from_cache(name, file), str) for file in _WEIGHTS):
        return Finding("model", Health.OK, f"{name}, in the Hugging Face cache")
    fix = f"hf download {name}, or actor_rollout_ref.model.path=DIR"
    return Finding("model", Health.MISSING, f"{name} is not on this machine; the first start downloads it", fix)
