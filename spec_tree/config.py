from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

_MOST_TOKENS = 2**30
MOST_THREADS = 16  #: maximum threads that draft a batch
_MOST_TOKEN = 2**31 - 1
_MOST_HASH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestConfig:
    """Size limits of a ``SpecForest``."""

    end_tokens: frozenset[int] = frozenset()
    """Tokens that end a turn; nothing is drafted after them."""
    rollouts_per_state: int = 32
    """Maximum finished turns kept per dialogue state (the dialogue before a turn); the oldest are dropped first."""
    max_tokens: int = 4_000_000
    """Maximum tokens in the turn buffer (indexed, drafted from), about 24 bytes each, allocated as needed."""
    max_cold_tokens: int = 40_000_000
    """Maximum tokens kept outside the buffer, unindexed, 2 to 4 bytes each; least recently used states go first."""
    max_context_tokens: int = 1_000_000
    """Maximum context tokens of all live turns (begun, not ended), 12 bytes each, allocated as needed."""
    context_window: int = 8192
    """How many of a context's last tokens the turn's own drafts may be copied from."""

    import_turns: str = ""
    """Turns of other runs to start with: a file of ``SpecForest.save``, or a folder of such files (checkpoints)."""
    vocabulary: int = 0
    """Size of the policy's vocabulary; turns with other tokens are refused. 0: unknown."""
    tokenizer: str = ""
    """Hash of the policy's tokenizer; turns of other tokenizers are refused. Empty: unknown."""
    # 8 threads are enough for the drafts of 256 rows; more threads would only wait.
    threads: int = 0
    """Threads that draft a batch of 64 rows or more; 0: one per core, at most 8."""

    def __post_init__(self) -> None:
        for token in self.end_tokens:
            if int(token) != token or not 0 <= token <= _MOST_TOKEN:
                raise ValueError(f"ForestConfig.end_tokens must be token ids from 0 to {_MOST_TOKEN}, got {token!r}")
        # Convert NumPy integers, which JSON cannot encode.
        object.__setattr__(self, "end_tokens", frozenset(int(token) for token in self.end_tokens))
        for name, least in (
            ("rollouts_per_state", 1),
            ("max_tokens", 1024),
            ("max_cold_tokens", 0),
            ("max_context_tokens", 1024),
            ("context_window", 0),
            ("vocabulary", 0),
            ("threads", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"ForestConfig.{name} must be a whole number, got {value!r}")
            if not least <= value <= _MOST_TOKENS:
                raise ValueError(f"ForestConfig.{name} must be from {least} to {_MOST_TOKENS}, got {value}")
        if not isinstance(self.tokenizer, str) or len(self.tokenizer) > _MOST_HASH:
            raise ValueError(f"ForestConfig.tokenizer must be a hash as text, got {self.tokenizer!r:.100}")
        if not isinstance(self.import_turns, str):
            raise ValueError(
                f"ForestConfig.import_turns must be the path of a store or of a folder, got {self.import_turns!r:.100}"
            )
        if self.threads > MOST_THREADS:
            raise ValueError(f"ForestConfig.threads must be at most {MOST_THREADS}, got {self.threads}")

    def of_policy(self, vocabulary: int, tokenizer: str) -> ForestConfig:
        """Return these settings for a policy; 0 and the empty string mean unknown.

        Raises:
            ValueError: If these settings belong to another tokenizer.

        >>> ForestConfig(vocabulary=9, tokenizer="a").of_policy(8, "").vocabulary
        8
        """
        if tokenizer and self.tokenizer and tokenizer != self.tokenizer:
            raise ValueError(
                f"expected turns of the tokenizer {tokenizer}, got turns of {self.tokenizer}; use a draft "
                "store of this policy, or an empty store"
            )
        return replace(self, vocabulary=vocabulary or self.vocabulary, tokenizer=tokenizer or self.tokenizer)

    @property
    def draft_threads(self) -> int:
        """Number of threads that draft."""
        return self.threads or min(8, os.cpu_count() or 1)


_MOST_TEXT = 1 << 20  #: characters of a settings text that are read


def config_to_text(config: ForestConfig) -> str:
    """Return ``config`` as a JSON object."""
    return json.dumps({**asdict(config), "end_tokens": sorted(config.end_tokens)})


def config_from_text(text: str | bytes) -> ForestConfig:
    """Return the settings that ``config_to_text`` wrote.

    Raises:
        ValueError: If the text is not a JSON object, or has an unknown key or an invalid value.
    """
    try:
        values = json.loads(text[:_MOST_TEXT])
    except RecursionError:
        raise ValueError("settings must be a JSON object, got text that is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError(f"settings must be a JSON object, got {text[:60]!r}")
    check_keys(values, ForestConfig, "of ForestConfig")
    try:
        return ForestConfig(**{**values, "end_tokens": frozenset(values.get("end_tokens", ()))})
    except (TypeError, OverflowError) as error:
        raise ValueError(f"a setting of ForestConfig has the wrong type: {error}") from None


def check_keys(keys: Iterable[str], settings: type[Any], where: str) -> None:
    """Raise ``ValueError`` for a key that is not a field of the dataclass ``settings``.

    The message names the nearest field, and ends with ``where``, such as ``of ForestConfig``.
    """
    known = [field.name for field in fields(settings)]
    for key in keys:
        if key not in known:
            nearest = (get_close_matches(key, known, 1, 0.0) or known)[0]
            raise ValueError(f"unknown setting {key!r} {where}; the nearest is {nearest!r}")
