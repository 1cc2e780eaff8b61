"""A training that ended because its disk was full: named in one line, and what it left half-written removed.

verl writes a checkpoint into its folder and then, last, the step into a file beside it. Where that step's checkpoint is
there, later folders of this run are halves.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

_SAID = re.compile(
    r"No space left on device|os error 28\b|\[Errno (?:27|28|122)\]|Disk quota exceeded|File too large|OutOfDiskError"
    r"|PytorchStreamWriter failed writing"
)
_NAMED = re.compile(r"(?:\[Errno (?:27|28|122)\] [^:\n]+: '([^'\n]+)')")
_NOTHING = 1 << 20
"""Free bytes of a full file system: too few for a log that says so."""


def full_disk(log: str, folder: Path) -> str | None:
    """What is full, in words; ``None`` if nothing says that it is.

    Args:
        folder: Folder of the run, whose file system may have been too full for the log itself.
    """
    free = shutil.disk_usage(folder).free
    reported = _SAID.search(log)
    if reported is None and free >= _NOTHING:
        return None
    named = _NAMED.search(log)
    place = named[1] if named else folder
    return (
        f"no space was left for {place} ({free / 1e6:,.0f} MB are free in the run's folder); free some, or name "
        "another place with turntree.run_dir"
    )


def remove_halves(checkpoints: Path, step: int, earlier: frozenset[str]) -> list[str]:
    """Remove the folders of checkpoints that were not finished; their names.

    Args:
        step: Step of the last whole checkpoint, 0 without one.
        earlier: Names of the folders that an earlier run left, which stay.
    """
    if step and not (checkpoints / f"global_step_{step}" / "actor").is_dir():
        return []  # verl has removed it for the one that it was writing: whatever is there may be needed
    later = [
        path
        for path in sorted(checkpoints.glob("global_step_*"))
        if path.name not in earlier and path.name.removeprefix("global_step_").isdigit()
        if int(path.name.removeprefix("global_step_")) > step
    ]
    for path in later:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in later]
