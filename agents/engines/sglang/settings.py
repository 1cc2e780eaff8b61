"""Settings of the draft worker inside SGLang.

SGLang's server arguments have no field for a plugin's settings. The settings are therefore passed to SGLang's
processes as a JSON object in the environment variable ``TURNTREE_SGLANG``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turntree.agents.engines.drafting.step_bound import most_drafted
from turntree.agents.engines.served.settings import DraftSettings

VARIABLE = "TURNTREE_SGLANG"  #: environment variable with the settings as a JSON object
ALGORITHM = "TURNTREE"  #: name of turntree's algorithm: ``speculative_algorithm="TURNTREE"``


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings(DraftSettings):
    """Settings of turntree's draft worker in SGLang."""

    # `speculative_num_draft_tokens` is always added as the largest width. If `widths` is empty, the smaller widths are
    # 1, 2, 4, ... on the CPU, and 1 on an accelerator, where each width needs its own attention and CUDA graphs.
    widths: tuple[int, ...] = ()
    """Ascending tree sizes to choose from, in tokens per request and pass (1 is plain decoding)."""
    max_depth: int = 32
    """Greatest depth of a draft."""
    min_probability: float = 0.2
    """Minimum estimated probability that the path from the root to a node is accepted; other nodes are not drafted."""
    replace_ngram: bool = False
    """Replace SGLang's worker for ``NGRAM``, for launchers that know only built-in algorithm names."""

    def __post_init__(self) -> None:
        DraftSettings.__post_init__(self)
        object.__setattr__(self, "widths", tuple(self.widths))  # JSON has lists
        if list(self.widths) != sorted(set(self.widths)) or any(width < 1 for width in self.widths):
            raise ValueError(f"SglangSettings.widths must be ascending and at least 1, got {self.widths}")
        if self.max_depth < 1:
            raise ValueError(f"SglangSettings.max_depth must be at least 1, got {self.max_depth}")

    def widths_within(self, widest: int, *, device: str = "cpu") -> tuple[int, ...]:
        """Return the widths to choose among if the engine takes at most ``widest`` tokens of a request.

        >>> SglangSettings().widths_within(12), SglangSettings().widths_within(12, device="cuda")
        ((1, 2, 4, 8, 12), (1, 12))
        >>> SglangSettings(widths=(4, 32)).widths_within(8)
        (4, 8)
        """
        default_widths = [1 << i for i in range(widest.bit_length())] if device == "cpu" else [1]
        return (*(width for width in self.widths or default_widths if width < widest), widest)

    def most_width(self, rows: int, widths: Sequence[int], device: str) -> int:
        """Return the widest of ``widths`` that a pass of ``rows`` requests may have, the first if none is allowed.

        >>> SglangSettings().most_width(256, (1, 2, 4, 8, 9), "cuda"), SglangSettings().most_width(9, (1, 9), "cuda")
        (8, 9)
        """
        whole = rows * (widths[-1] - 1)
        within = most_drafted(self.max_step_tokens, rows, device=device, most=whole)
        return max((width for width in widths if rows * (width - 1) <= within), default=widths[0])


def graph_sizes(most: int) -> list[int]:
    """Return the ascending batch sizes up to ``most`` whose graphs are captured for each width.

    With drafts, SGLang's own list is three times as long, and its graphs take three times as long to capture. A batch
    is padded to the next size: by at most a half, from 64 requests on by at most a third.

    >>> graph_sizes(24), len(graph_sizes(256)), graph_sizes(512)[-3:]
    ([1, 2, 4, 8, 12, 16, 24], 17, [384, 448, 512])
    """
    sizes = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 224, *range(256, most + 1, 64), most}
    return sorted(size for size in sizes if size <= most)


def settings_from_environment(environment: Mapping[str, str] = os.environ) -> SglangSettings:
    """Read ``TURNTREE_SGLANG``; return the defaults if it is not set.

    Raises ``ValueError`` if it is not a JSON object, or has an unknown key or an invalid value.

    >>> settings_from_environment({"TURNTREE_SGLANG": '{"widths": [1, 8], "forest": {"rollouts_per_state": 8}}'}).widths
    (1, 8)
    """
    text = environment.get(VARIABLE, "").strip() or "{}"
    try:
        values: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{VARIABLE} must hold a JSON object: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{VARIABLE} must hold a JSON object, got {text[:60]!r}")
    return SglangSettings.from_mapping(values, f"in {VARIABLE}")
