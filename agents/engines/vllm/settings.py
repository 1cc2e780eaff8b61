"""Settings of the drafter inside vLLM, and the arguments of vLLM that carry them.

vLLM starts processes of its own; all of them get its configuration. So the
drafter's settings are there, under ``additional_config["turntree"]``, beside
``speculative_config``, which names the drafter and the length of a draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from turntree.agents.engines.served.settings import DraftSettings
from turntree.spec_tree import ForestConfig

SECTION = "turntree"
"""Key of the settings in vLLM's ``additional_config``."""
DRAFTER = "turntree.agents.engines.vllm.drafter.ForestDrafter"
"""The class that vLLM loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings(DraftSettings):
    """Settings of the drafter."""

    enabled: bool = True
    """``False``: learn from the sampled tokens, and draft nothing."""

    @classmethod
    def from_additional_config(cls, values: Any) -> DrafterSettings:
        """Read vLLM's ``additional_config``; the defaults if it has no section of turntree's.

        Raises:
            ValueError: If the section is not a mapping, or has an unknown key or an invalid value.

        Example:
            >>> DrafterSettings.from_additional_config({"turntree": {"adaptive": False}}).adaptive
            False
        """
        section = values.get(SECTION) if isinstance(values, Mapping) else None
        if section is None:
            return cls()
        if not isinstance(section, Mapping):
            raise ValueError(f"additional_config[{SECTION!r}] must be a mapping of settings, got {section!r:.100}")
        return cls.from_mapping(section, "of turntree's drafter")

    def to_additional_config(self) -> dict[str, Any]:
        """The value for vLLM's ``additional_config``: plain JSON data."""
        return {SECTION: self.to_mapping()}


def with_forest(additional_config: Any, forest: ForestConfig) -> dict[str, Any]:
    """vLLM's ``additional_config`` with these settings of the store, unless its section has some of its own.

    Args:
        additional_config: What it is without them; ``None`` for nothing.

    Raises:
        ValueError: If it is no mapping, or as ``DrafterSettings.from_additional_config``.

    Example:
        >>> kept = with_forest({"other": 1, "turntree": {"adaptive": False}}, ForestConfig(max_tokens=4096))
        >>> kept["other"], kept["turntree"]["adaptive"], kept["turntree"]["forest"]["max_tokens"]
        (1, False, 4096)
    """
    given = {} if additional_config is None else additional_config
    if not isinstance(given, Mapping):
        raise ValueError(f"additional_config must be a mapping, got {given!r:.100}")
    settings = DrafterSettings.from_additional_config(given)
    if "forest" not in (given.get(SECTION) or ()):
        settings = replace(settings, forest=forest)
    return {**given, **settings.to_additional_config()}


def speculative_config(max_tokens: int = 8) -> dict[str, Any]:
    """The value for vLLM's ``speculative_config`` for turntree's drafter."""
    return {"method": "custom_class", "model": DRAFTER, "num_speculative_tokens": max_tokens}


def drafts_by_turntree(speculative: Any) -> bool:
    """Whether vLLM's ``speculative_config`` names turntree's drafter.

    >>> drafts_by_turntree(speculative_config()), drafts_by_turntree({"method": "ngram"}), drafts_by_turntree(None)
    (True, False, False)
    """
    return isinstance(speculative, Mapping) and speculative.get("model") == DRAFTER
