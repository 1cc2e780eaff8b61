"""Suites: YAML files with a list ``suite`` of evaluations; suites in ``configs/eval`` are found by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from turntree.agents.episodes.hints import read_settings
from turntree.agents.errors import UsageError
from turntree.agents.yaml_files import read_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTask:
    env: str
    """Environment id."""
    name: str = ""
    """Name in tables; defaults to the id."""
    env_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment."""
    count: int | None = None
    """Number of tasks, from the first; ``None`` takes all tasks, or 20 if the environment has unlimited tasks."""
    samples: int = 1
    """Episodes per task."""
    temperature: float = 0.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    """Probability mass of nucleus sampling (top-p)."""
    max_tokens: int = 256
    """Token limit per turn."""
    max_context: int | None = None
    """Token limit per episode; ``None`` takes 1024, or twice ``max_tokens`` if more, within the model's limit."""

    def __post_init__(self) -> None:
        for name in ("samples", "max_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} must be an integer of at least 1, got {value!r}")
        if self.count is not None and self.count < 1:
            raise UsageError(f"count must be at least 1, got {self.count}")

    @property
    def title(self) -> str:
        return self.name or self.env


def find_suite(name: str) -> Path | None:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    path = Path(str(resources.files("turntree.configs").joinpath("eval", f"{name}.yaml")))
    return path if "/" not in name and path.is_file() else None


def nearest_suite(name: str) -> str:
    import difflib

    known = [
        entry.name.removesuffix(".yaml") for entry in resources.files("turntree.configs").joinpath("eval").iterdir()
    ]
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.7)), "")


def read_suite(path: Path) -> list[EvalTask]:
    content = read_yaml(path)
    rows = content.get("suite") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{path}: expected a list `suite` of evaluations, each with `env`, got {str(content)[:60]!r}")
    tasks = []
    for number, row in enumerate(rows, start=1):
        where = f"{path}, evaluation {number}"
        if not isinstance(row, dict) or "env" not in row:
            raise UsageError(f"{where}: expected a mapping with `env`, got {str(row)[:60]!r}")
        try:
            tasks.append(read_settings(EvalTask, row, where))
        except ValueError as error:
            raise UsageError(str(error)) from error
    titles = [task.title for task in tasks]
    # Names become file names, so two evaluations must not have the same name.
    if len(set(titles)) < len(titles):
        raise UsageError(f"{path}: two evaluations have the same name; give each a `name`")
    return tasks
