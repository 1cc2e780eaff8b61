"""What a run of ``gpu.py`` measures on, the same for all its stages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""Figures of one line of a table, plain values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The arguments of ``gpu.py`` that change what is measured."""

    folder: Path
    """For results, logs and the models that are made."""
    device: str
    """Torch device."""
    dtype: str
    """Dtype of weights and activations; what is exact is shown in float32."""
    small: bool
    """Everything in the smallest size, to see on any machine that it runs."""
    model: Path | None = None
    """Folder of a model in place of the one with random weights."""

    def of(self, full: Any, small: Any) -> Any:
        """The one of two values that goes with the size of the run."""
        return small if self.small else full
