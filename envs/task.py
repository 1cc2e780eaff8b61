"""One problem with its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The task of an episode; the same for every sample of a group."""

    id: str
    """Identifier, stable across epochs and processes; keys the stored rollouts of the task."""
    prompt: str
    """The question, as the environment presents it to the policy."""
    answer: str = ""
    """The gold answer, in the form that the environment's verifier reads; never shown to the policy."""
    data_source: str = ""
    """Data set of the row, for example ``gsm8k``."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Anything else, JSON values."""
