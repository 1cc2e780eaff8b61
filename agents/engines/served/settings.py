"""Settings common to the vLLM and SGLang engines and their drafters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from turntree.spec_tree.config import ForestConfig, check_keys, config_from_text, config_to_text


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedConfig:
    """Size and behaviour of a vLLM or SGLang engine in this process."""

    max_batch: int = 32
    """Requests that decode concurrently; more wait in a queue."""
    max_context: int = 1024
    """Maximum tokens of prompt and response together."""
    dtype: str = "auto"
    """Dtype of weights and activations: auto, float32, bfloat16 or float16."""
    seed: int | None = None
    """Seeds the noise of requests without a seed; ``None`` is fresh entropy."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the engine: vLLM's ``AsyncEngineArgs`` or SGLang's server arguments."""

    def _check(self, least: Mapping[str, int], ours: Sequence[str], advice: str) -> None:
        for name, smallest in {"max_batch": 1, "max_context": 1, **least}.items():
            if getattr(self, name) < smallest:
                raise ValueError(f"{type(self).__name__}.{name} must be at least {smallest}, got {getattr(self, name)}")
        taken = [name for name in ours if name in self.engine_args]
        if taken:
            raise ValueError(f"{type(self).__name__}.engine_args must leave {', '.join(taken)} to turntree; {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftSettings:
    """Settings of turntree's drafter in an engine. None of them changes what is sampled."""

    min_probability: float = 0.05
    """Minimum estimated probability that the draft up to a token is accepted.

    An adaptive drafter chooses a threshold of at least this value. Choose a low one for few concurrent requests."""
    adaptive: bool = True
    """Verify as many of the allowed drafts as give the most tokens per second by measured steps, possibly none."""
    max_step_tokens: int | None = None
    """Maximum draft tokens of all requests in one step, padding included.

    ``None`` sets a bound only on accelerators, where verification needs much memory (``drafting.step_bound``)."""
    forest: ForestConfig = field(default_factory=ForestConfig)
    """Settings of the draft store; the model's own end tokens are added."""

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
            where: Whose settings they are, for messages: ``of turntree's drafter``.

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
        return {**asdict(self), "forest": json.loads(config_to_text(self.forest))}
