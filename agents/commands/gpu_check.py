"""Checks for a training: on GPUs what it needs beside turntree, and of one configuration its memory and its model.

Nothing is started; of a model of the hub its configuration is fetched, as a start does.
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

_ENGINES = {"vllm": "vllm", "sglang": "sglang", "turntree": None}
"""The extra of verl that pins an engine, by ``rollout.name``."""
_FLASH = "flash-attn"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Files of a model with weights, one of which is there; its configuration alone may be in a cache."""
_HOW = "make gpu-env, or the pins of requirements/gpu-{}.txt"


def pins_of(extra: str) -> dict[str, str]:
    """The versions that an extra of the installed verl pins exactly, by distribution; empty without verl."""
    from packaging.requirements import Requirement

    try:
        required = [Requirement(line) for line in metadata.requires("verl") or ()]
    except metadata.PackageNotFoundError:
        return {}
    pins = {}
    for one in required:
        if one.marker is not None and one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""}):
            for specifier in one.specifier:
                if specifier.operator == "==":
                    pins[one.name] = specifier.version
    return pins


def examine_gpus(engine: str | None) -> Iterator[Finding]:
    """Check what a training on GPUs needs beside the devices.

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
    """What keeps a training from starting, the memory of its phases, its GPUs and its model."""
    for problem in start.problems:
        yield Finding("start", Health.BROKEN, "cannot be started", _line(problem))
    config = start.composition.verl
    if not start.problems:
        yield Finding("start", Health.OK, f"{start.composition.choice.name} can be started")
        yield _model(str(config.actor_rollout_ref.model.path))
    if config.trainer.device == "cpu":
        yield Finding("memory", Health.OK, "not estimated, as it trains on the CPU")
    else:
        yield from _memory(config)


def report_check(config: str, overrides: Sequence[str], out: Path | None) -> int:
    """Print what a training would be started with.

    Args:
        out: File for verl's whole configuration, written if the training could be started.

    Returns:
        Exit status: 0 if it could be started, 2 if ``train`` would refuse it, 1 if it would not fit into memory.
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
    typer.echo("keys of verl that differ from its defaults:")
    for line in start.changed:
        typer.echo(f"  {line}")
    if out is not None:
        write_whole(out, start.yaml())
        typer.echo(f"verl's whole configuration: {out}")
    return int(any(finding.health is Health.BROKEN for finding in findings))


@contextmanager
def _warnings_shown() -> Iterator[None]:
    """Show what a composition warns of, such as keys that change nothing."""
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
    """A package beside verl's pin; a local label such as ``+cu130`` is ignored."""
    found = version_of(package)
    wanted = f"verl {version_of('verl')} pins {pin}" if pin else "verl is not installed, so that its pin is not known"
    if found is None:
        return Finding(f"pin {package}", Health.MISSING, f"none is installed; {wanted}", fix)
    if pin is not None and found.partition("+")[0] != pin:
        return Finding(f"pin {package}", Health.MISSING, f"{found} is installed; {wanted}", fix)
    return Finding(f"pin {package}", Health.OK, f"{found}; {wanted}")


def _flash_extras() -> list[str]:
    """Extras of verl that pin flash attention."""
    try:
        extras = metadata.metadata("verl").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return []
    return [extra for extra in extras if _FLASH in pins_of(extra)]


def _flash_attention(pinned: Finding) -> Iterator[Finding]:
    """What verl takes of it with ``use_remove_padding``; without it a training takes PyTorch's attention."""
    from turntree.agents.verl.config.trainer_config import flash_attention_error

    if pinned.health is Health.OK and (error := flash_attention_error()):
        what, fix = (
            f"{pinned.what}, but it cannot be imported: {error}",
            "take the wheel for this torch, CUDA and Python",
        )
        pinned = Finding(pinned.part, Health.BROKEN, what, fix)
    if pinned.health is not Health.OK:
        pinned = pinned._replace(fix=f"{pinned.fix}; until then trainings take use_remove_padding=false and sdpa")
    yield pinned


def _memory(config: Any) -> Iterator[Finding]:
    from turntree.agents.verl.config.sections import ConfigError
    from turntree.agents.verl.memory.phases import CARD, SPARE, estimate

    gpus, here = _gpus_here()
    wanted = config.trainer.n_gpus_per_node
    if here:
        what = f"trainer.n_gpus_per_node={wanted}, {here} are here"
        enough = here >= wanted
        fix = "" if enough else "take a smaller size, or set trainer.n_gpus_per_node"
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
        yield Finding("memory: host", Health.OK, f"{found.host / 1e9:,.0f} GB of each node hold what waits there")


def _less(health: Health) -> str:
    """What takes less memory."""
    if health is Health.OK:
        return ""
    return (
        "less than a tenth stays free: lower actor_rollout_ref.rollout.gpu_memory_utilization or max_num_seqs, or "
        "ppo_max_token_len_per_gpu, offload (fsdp_config), or take more GPUs"
    )


def _gpus_here() -> tuple[Sequence[int], int]:
    """Memory of each GPU of this machine, bytes, and their number."""
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
        return Finding("model", Health.OK, f"{name}, in the cache of Hugging Face")
    fix = f"hf download {name}, or actor_rollout_ref.model.path=DIR"
    return Finding("model", Health.MISSING, f"{name} is not on this machine: it is fetched at the first start", fix)
