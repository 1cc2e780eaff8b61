"""Describe in one line why a training died: a full disk, or a process killed for lack of memory."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from turntree.agents.verl.config.trainer_config import MICRO_BATCHES, longest_row

# Errors 27, 28 and 122 are EFBIG, ENOSPC and EDQUOT.
_DISK_FULL = re.compile(
    r"No space left on device|os error 28\b|\[Errno (?:27|28|122)\]|Disk quota exceeded|File too large|OutOfDiskError"
    r"|PytorchStreamWriter failed writing"
)
_NAMED_FILE = re.compile(r"(?:\[Errno (?:27|28|122)\] [^:\n]+: '([^'\n]+)')")
#: bytes; with less free space, the disk may have been too full to write the error to the log
_NEARLY_FULL = 1 << 20
_VMSTAT = Path("/proc/vmstat")
# Ray logs the processes that Ray kills. If the kernel kills a process, Ray's log only says that an actor died.
_BY_RAY = re.compile(
    r"killed due to the node running low on memory.*?was (?P<used>[\d.]+)GB used / (?P<all>[\d.]+)GB limit", re.DOTALL
)
_SELECTED = re.compile(r"Selected to kill: .*?task name=(\S+?)\.\w+, .*?actual memory used=([\d.]+)GB")
_GONE = re.compile(r"ActorDiedError.*?class_name: (\S+)", re.DOTALL)


def full_disk(log: str, folder: Path) -> str | None:
    """Describe a full disk; ``None`` if neither the log nor the free space indicates a full disk."""
    free = shutil.disk_usage(folder).free
    reported = _DISK_FULL.search(log)
    if reported is None and free >= _NEARLY_FULL:
        return None
    named = _NAMED_FILE.search(log)
    return (
        f"no space was left for {named[1] if named else folder} ({free / 1e6:,.0f} MB are free in the run's folder); "
        "free some, or name another folder with turntree.run_dir"
    )


def kernel_kills(file: Path = _VMSTAT) -> int:
    """Return how many processes the kernel has killed for memory since boot; 0 if it does not count them."""
    count = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE) if file.exists() else None
    return int(count[1]) if count else 0


def memory_kill(log: str, config: DictConfig, *, by_kernel: bool) -> str | None:
    """Describe a process killed for memory and the setting to lower; ``None`` if no process was killed."""
    machine = _BY_RAY.search(log)
    if machine is not None:
        held = {name: float(memory) for name, memory in _SELECTED.findall(log)}
        name = max(held, key=lambda process: held[process], default="")
        size = f" with {held[name]:.1f} GB" if held else ""
        why = f"{size}, as {machine['used']} of the machine's {machine['all']} GB were used"
    elif by_kernel:
        gone = _GONE.search(log)
        name, why = gone[1] if gone else "", ", as the machine had no memory left"
    else:
        return None
    process, key = _setting_to_lower(name, config)
    return f"{process} was killed{why}; lower {key}, now {OmegaConf.select(config, key)}"


def _setting_to_lower(name: str, config: DictConfig) -> tuple[str, str]:
    # ``name`` is the actor's class. Return a description, and the key with the most effect on the actor's memory.
    if "Server" in name or "Replica" in name:
        return f"the engine ({name})", "actor_rollout_ref.rollout.max_num_seqs"
    if "Worker" in name and "Dict" not in name and "Actor" not in name:
        return f"the player of episodes ({name})", "data.train_batch_size"
    key = MICRO_BATCHES[0]
    if OmegaConf.select(config, key) <= longest_row(config):
        key = "data.max_response_length"  # a row cannot be split
    return f"the trainer ({name})" if name else "a process of the training", key
