"""Settings that vLLM's and SGLang's drafters have in common, as their processes read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from turntree.spec_tree.config import ForestConfig, check_keys, config_from_text, config_to_text


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """Settings of turntree's drafter in an engine. None of them changes what is sampled."""

    min_probability: float = 0.05
    """A token is drafted if the store's estimate that the draft up to it is accepted reaches this probability. An
    adaptive drafter chooses its threshold from here up; a low one is best for few requests at once."""
    adaptive: bool = True
    """Verify the drafts that give the most tokens per second by the engine's own measured steps: fewer than the
    settings allow, or none."""
    max_step_tokens: int | None = None
    """Most draft tokens of all requests together in one step, padding included, within the engine's own limits;
    ``None`` bounds them on an accelerator alone (``drafting.step_bound``), for the memory that verification takes."""
    forest: ForestConfig = field(default_factory=ForestConfig)
    """Settings of the store; with the model's own end tokens, in vLLM where it has none, in SGLang beside its own."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not 0 <= self.min_probability <= 1:
            raise ValueError(f"{name}.min_probability must lie in [0, 1], got {self.min_probability}")
        if self.max_step_tokens is not None and self.max_step_tokens < 1:
            raise ValueError(f"{name}.max_step_tokens must be at least 1, got {self.max_step_tokens}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> Self:
        """Read settings from plain data; ``forest`` is a mapping of ``ForestConfig``'s fields.

        Args:
            where: Their place, for messages: ``of turntree's drafter``.

        Raises:
            ValueError: If a key is unknown or a value invalid.
        """
        check_keys(values, cls, where)
        given = dict(values)
        if "forest" in given:
            given["forest"] = config_from_text(json.dumps(given["forest"]))
        try:
            return cls(**given)
        except TypeError as error:
            raise ValueError(f"a setting {where} has the wrong type: {error}") from None

    def to_mapping(self) -> dict[str, Any]:
        """The settings as JSON data."""
        return {**asdict(self), "forest": json.loads(config_to_text(self.forest))}
