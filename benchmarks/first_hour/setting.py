from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    folder: Path  #: for results, logs and the models that are made
    device: str
    dtype: str  #: of weights and activations; exactness is checked in float32
    small: bool  #: smallest sizes, to test the script on any machine
    model: Path | None = None  #: folder of a model that replaces the random one

    def of(self, full: Any, small: Any) -> Any:
        # Picks the value for the run's size.
        return small if self.small else full
