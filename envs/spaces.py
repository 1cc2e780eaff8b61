"""The space of all text. Gymnasium's ``Text`` needs an explicit character set; a language model may write anything."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Space

_MEAN_SAMPLE_LENGTH = 24
#: half-open ranges of code points that samples are drawn from; no range contains surrogates
_RANGES = (
    (0x20, 0x7F),  # ASCII, printable
    (0x20, 0x7F),  # listed twice, because most text is ASCII
    (0x09, 0x0B),  # tab and newline
    (0xA1, 0x17F),  # accented Latin
    (0x391, 0x3CA),  # Greek
    (0x410, 0x450),  # Cyrillic
    (0x300, 0x30A),  # combining accents
    (0x4E00, 0x4E80),  # Chinese characters
    (0x1F600, 0x1F640),  # emoji, beyond the basic plane
)


class Unicode(Space[str]):
    """Any string of at most ``max_length`` characters, including the empty one.

    Example:
        >>> space = Unicode(5)
        >>> "" in space, "naïve" in space, "too long" in space, 3 in space
        (True, True, False, False)
        >>> Unicode(100, seed=1).sample() == Unicode(100, seed=1).sample()
        True
    """

    def __init__(self, max_length: int = 1_000_000, *, seed: int | np.random.Generator | None = None) -> None:
        """Create the space.

        Args:
            max_length: Maximum number of characters (code points).
            seed: Seed or generator for ``sample``.

        Raises:
            ValueError: If ``max_length`` is not a non-negative integer.
        """
        if isinstance(max_length, bool) or not isinstance(max_length, int | np.integer) or max_length < 0:
            raise ValueError(f"max_length must be an integer of at least 0, got {max_length!r}")
        self.max_length = int(max_length)
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Always ``False``: text has no array form of fixed size."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Draw a text in mixed scripts. Short texts are likelier than long ones, whatever ``max_length`` is.

        Raises:
            ValueError: If a mask or a probability is given; this space supports neither.
        """
        if mask is not None or probability is not None:
            raise ValueError("Unicode.sample takes neither mask nor probability; call it without arguments")
        rng = self.np_random
        length = min(self.max_length, int(rng.geometric(1 / (_MEAN_SAMPLE_LENGTH + 1))) - 1)
        ranges = np.array(_RANGES)[rng.integers(len(_RANGES), size=length)]
        return "".join(map(chr, rng.integers(ranges[:, 0], ranges[:, 1])))

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string of at most ``max_length`` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"Unicode({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((Unicode, self.max_length))
