"""Processes of a training that were killed because the machine ran out of memory, reported in one line.

Ray kills a worker when the machine's memory is nearly used up, and says so in its log; the kernel kills without a word,
and Ray then sees an actor that is gone. The kernel's count of such kills is what tells the two apart from other deaths.
"""

from __future__ import annotations

import re
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from turntree.agents.verl.config.micro_batches import MICRO_BATCHES, longest_row

_VMSTAT = Path("/proc/vmstat")
_BY_RAY = re.compile(
    r"killed due to the node running low on memory.*?was (?P<used>[\d.]+)GB used / (?P<all>[\d.]+)GB limit", re.DOTALL
)
_SELECTED = re.compile(r"Selected to kill: .*?task name=(\S+?)\.\w+, .*?actual memory used=([\d.]+)GB")
_GONE = re.compile(r"ActorDiedError.*?class_name: (\S+)", re.DOTALL)


def kernel_kills(file: Path = _VMSTAT) -> int:
    """Processes that this machine's kernel has killed for memory since it started; 0 where it does not count them."""
    found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE) if file.exists() else None
    return int(found[1]) if found else 0


def memory_kill(log: str, config: DictConfig, *, by_kernel: bool) -> str | None:
    """What was killed for memory, and the setting to lower; ``None`` if nothing was.

    Args:
        by_kernel: Whether the kernel has killed a process for memory during the run.
    """
    machine = _BY_RAY.search(log)
    if machine is not None:
        held = {name: float(memory) for name, memory in _SELECTED.findall(log)}
        name = max(held, key=lambda one: held[one], default="")
        of_it = f" with {held[name]:.1f} GB" if held else ""
        where = f"{of_it}, as {machine['used']} of the machine's {machine['all']} GB were used"
    elif by_kernel:
        gone = _GONE.search(log)
        name, where = gone[1] if gone else "", ", as the machine had no memory left"
    else:
        return None
    who, key = _to_lower(name, config)
    return f"{who} was killed{where}; lower {key}, now {OmegaConf.select(config, key)}"


def _to_lower(name: str, config: DictConfig) -> tuple[str, str]:
    """A process by the name of its class, in words, and the key that decides most about its memory."""
    if "Server" in name or "Replica" in name:
        return f"the engine ({name})", "actor_rollout_ref.rollout.max_num_seqs"
    if "Worker" in name and "Dict" not in name and "Actor" not in name:
        return f"the player of episodes ({name})", "data.train_batch_size"
    key = MICRO_BATCHES[0]
    if OmegaConf.select(config, key) <= longest_row(config):
        key = "data.max_response_length"  # a row cannot be divided
    return f"the trainer ({name})" if name else "a process of the training", key
