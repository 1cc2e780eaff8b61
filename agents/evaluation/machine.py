from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path


def hardware(device: str = "cpu") -> str:
    accelerators = [name for _, name in _accelerator(device)]
    return accelerators[0] if accelerators else f"{_processor()}, {os.cpu_count()} cores"


def machine_facts(packages: Iterable[str], *, device: str = "cpu") -> list[tuple[str, str]]:
    """Return processor, system and package versions; an accelerator comes first."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = [(package, version_of(package)) for package in packages]
    facts = [
        ("processor", f"{hardware()}, {memory:.0f} GiB of memory"),
        ("system", f"{platform.system()} {platform.release()}, Python {platform.python_version()}"),
        ("packages", ", ".join(f"{package} {version}" for package, version in versions if version)),
    ]
    return [*_accelerator(device), *facts]


def _accelerator(device: str) -> list[tuple[str, str]]:
    if device == "cpu":
        return []
    import torch

    if not torch.cuda.is_available():
        return [("device", device)]
    gpu = torch.cuda.get_device_properties(torch.device(device))
    return [("device", f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB")]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
