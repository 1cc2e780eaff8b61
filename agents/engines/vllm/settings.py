"""Settings of the drafter inside vLLM, and the arguments of vLLM that carry them.

vLLM starts processes of its own; all of them get its configuration. So the
drafter's settings are there, under ``additional_config["turntree"]``, beside
``speculative_config``, which names the drafter and the length of a draft.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from turntree.spec_tree import ForestConfig
from turntree.spec_tree.config_text import check_keys, config_from_text

SECTION = "turntree"
"""Key of the settings in vLLM's ``additional_config``."""
DRAFTER = "turntree.agents.engines.vllm.drafter.ForestDrafter"
"""The class that vLLM loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings:
    """Settings of the drafter. None of them changes what is sampled."""

    min_probability: float = 0.05
    """A token is drafted if the store's estimate that the draft up to it is accepted reaches this probability. An
    adaptive drafter chooses its threshold from here up; a low one is best for few requests at once."""
    adaptive: bool = True
    """Verify the drafts that give the most tokens per second by the engine's own measured steps: fewer than the
    settings allow, or none."""
    max_step_tokens: int | None = None
    """Most draft tokens of all requests together in one step, within vLLM's own limits; ``None`` bounds them on an
    accelerator alone (``drafting.step_bound``), for the memory that verification takes."""
    enabled: bool = True
    """``False``: learn from the sampled tokens, and draft nothing."""
    forest: ForestConfig = field(default_factory=ForestConfig)
    """Settings of the store. Without ``end_tokens`` it takes the model's own."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_probability <= 1:
            raise ValueError(f"DrafterSettings.min_probability must lie in [0, 1], got {self.min_probability}")
        if self.max_step_tokens is not None and self.max_step_tokens < 1:
            raise ValueError(f"DrafterSettings.max_step_tokens must be at least 1, got {self.max_step_tokens}")

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
        return cls.from_mapping(section)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> DrafterSettings:
        """Read settings from plain data; ``forest`` is a mapping of ``ForestConfig``'s fields.

        Raises:
            ValueError: If a key is unknown or a value invalid.
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
        """The value for vLLM's ``additional_config``: plain JSON data."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["forest"] = asdict(self.forest) | {"end_tokens": sorted(self.forest.end_tokens)}
        return {SECTION: values}


def with_forest(additional_config: Any, forest: ForestConfig) -> dict[str, Any]:
    """vLLM's ``additional_config`` with these settings of the store, unless its section has some of its own.

    Args:
        additional_config: What it is without them; ``None`` for nothing.
        forest: Settings of the store.

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
    """The value for vLLM's ``speculative_config`` for turntree's drafter.

    Args:
        max_tokens: Greatest length of a draft.
    """
    return {"method": "custom_class", "model": DRAFTER, "num_speculative_tokens": max_tokens}


def drafts_by_turntree(speculative: Any) -> bool:
    """Whether vLLM's ``speculative_config`` names turntree's drafter.

    >>> drafts_by_turntree(speculative_config()), drafts_by_turntree({"method": "ngram"}), drafts_by_turntree(None)
    (True, False, False)
    """
    return isinstance(speculative, Mapping) and speculative.get("model") == DRAFTER
