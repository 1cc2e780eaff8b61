"""Settings of the drafter inside vLLM.

vLLM passes its configuration to every process that it starts. The drafter's settings are therefore a section of that
configuration, ``additional_config["turntree"]``; ``speculative_config`` names the drafter and the draft length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from turntree.agents.engines.served.settings import DraftSettings
from turntree.spec_tree import ForestConfig

SECTION = "turntree"  #: key of the settings in vLLM's ``additional_config``
DRAFTER = "turntree.agents.engines.vllm.drafter.ForestDrafter"  #: the class that vLLM loads


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings(DraftSettings):
    """Settings of turntree's drafter in vLLM."""

    enabled: bool = True
    """Draft; ``False`` only stores sampled tokens in the draft store."""

    @classmethod
    def from_additional_config(cls, values: Any) -> DrafterSettings:
        """Read vLLM's ``additional_config``; without turntree's section, return the defaults.

        Raises ``ValueError`` if the section is not a mapping, or has an unknown key or an invalid value.

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
        return {SECTION: self.to_mapping()}


def with_forest(additional_config: Any, forest: ForestConfig) -> dict[str, Any]:
    """Return vLLM's ``additional_config`` with settings of the draft store, unless it already has some.

    >>> merged = with_forest({"other": 1, "turntree": {"adaptive": False}}, ForestConfig(max_tokens=4096))
    >>> merged["other"], merged["turntree"]["adaptive"], merged["turntree"]["forest"]["max_tokens"]
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
    """Return vLLM's ``speculative_config`` for turntree's drafter."""
    return {"method": "custom_class", "model": DRAFTER, "num_speculative_tokens": max_tokens}


def drafts_by_turntree(speculative: Any) -> bool:
    """Return whether vLLM's ``speculative_config`` names turntree's drafter.

    >>> drafts_by_turntree(speculative_config()), drafts_by_turntree({"method": "ngram"}), drafts_by_turntree(None)
    (True, False, False)
    """
    return isinstance(speculative, Mapping) and speculative.get("model") == DRAFTER
