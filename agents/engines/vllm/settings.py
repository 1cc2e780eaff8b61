"""Settings of the drafter inside vLLM, and the arguments of vLLM that carry them.

vLLM starts processes of its own; all of them get its configuration. So the
drafter's settings stand there, under ``additional_config["turntree"]``, beside
``speculative_config``, which names the drafter and the length of a draft.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from turntree.spec_tree import ForestConfig
from turntree.spec_tree.config_text import check_keys, config_from_text

SECTION = "turntree"
"""Key of the settings in vLLM's ``additional_config``."""
DRAFTER = "turntree.agents.engines.vllm.drafter.ForestDrafter"
"""The class that vLLM loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings:
    """How the drafter drafts. Nothing here can change what is sampled."""

    min_probability: float = 0.05
    """A token is drafted if the store believes that the draft up to it is accepted with at least this probability. An
    adaptive drafter chooses its threshold from here up; few requests at once are served best by a low one."""
    adaptive: bool = True
    """Verify what gives the most tokens per second by the engine's own measured steps: fewer drafts than the settings
    allow, or none."""
    max_step_tokens: int | None = None
    """Draft tokens of all requests together in one step; ``None`` is as many as vLLM's own limits take."""
    enabled: bool = True
    """``False``: learn from what is said, and draft nothing."""
    forest: ForestConfig = field(default_factory=ForestConfig)
    """Of the store. Without ``end_tokens`` it takes the model's own."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_probability <= 1:
            raise ValueError(f"DrafterSettings.min_probability must lie in [0, 1], got {self.min_probability}")
        if self.max_step_tokens is not None and self.max_step_tokens < 1:
            raise ValueError(f"DrafterSettings.max_step_tokens must be at least 1, got {self.max_step_tokens}")

    @classmethod
    def from_additional_config(cls, values: Any) -> DrafterSettings:
        """Read vLLM's ``additional_config``; the defaults where it has no section of ours.

        Raises:
            ValueError: If the section is no mapping, or has an unknown key or a value that is not allowed.

        Example:
            >>> DrafterSettings.from_additional_config({"turntree": {"adaptive": False}}).adaptive
            False
        """
        section = values.get(SECTION) if isinstance(values, Mapping) else None
        if section is None:
            return cls()
        if not isinstance(section, Mapping):
            raise ValueError(f"additional_config[{SECTION!r}] must be a mapping of settings, got {section!r:.100}")
        return cls.from_mapping(section)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> DrafterSettings:
        """Read settings from plain data; ``forest`` is a mapping of ``ForestConfig``'s fields.

        Raises:
            ValueError: If a key is unknown or a value not allowed.
        """
        check_keys(values, cls, "of turntree's drafter")
        given = dict(values)
        if "forest" in given:
            given["forest"] = config_from_text(json.dumps(given["forest"]))
        try:
            return cls(**given)
        except TypeError as error:
            raise ValueError(f"a setting of turntree's drafter has the wrong type: {error}") from None

    def to_additional_config(self) -> dict[str, Any]:
        """What to give vLLM as ``additional_config``: plain data, as JSON has them."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["forest"] = asdict(self.forest) | {"end_tokens": sorted(self.forest.end_tokens)}
        return {SECTION: values}


def speculative_config(max_tokens: int = 8) -> dict[str, Any]:
    """What to give vLLM as ``speculative_config`` for turntree's drafter.

    Args:
        max_tokens: Length of a draft at most.
    """
    return {"method": "custom_class", "model": DRAFTER, "num_speculative_tokens": max_tokens}
