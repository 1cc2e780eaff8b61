"""Seeds that the policy was trained on, in bounded memory; errors go only one way.

A Bloom filter (Bloom, "Space/time trade-offs in hash coding with allowable errors", CACM 1970) finds every
added seed, and a few other seeds by mistake. A claim made only for seeds that are not found is therefore never wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_HASHES = 3


class SeenSeeds:
    """A growing set of 64-bit seeds.

    Args:
        bits: Size of the filter, a multiple of 8. The default, 8 MiB, finds one in 20 unseen seeds by mistake after ten
            million seeds were added.

    >>> seen = SeenSeeds(bits=1024)
    >>> seen.add([3, 5])
    >>> 3 in seen, 4 in seen
    (True, False)
    """

    def __init__(self, *, bits: int = 1 << 26) -> None:
        if bits < 8 or bits % 8:
            raise ValueError(f"bits must be a positive multiple of 8, got {bits}")
        self._table = np.zeros(bits // 8, np.uint8)

    def add(self, seeds: Iterable[int]) -> None:
        for seed in seeds:
            for bit in self._bits(seed):
                self._table[bit >> 3] |= np.uint8(1 << (bit & 7))

    def __contains__(self, seed: int) -> bool:
        return all(self._table[bit >> 3] >> (bit & 7) & 1 for bit in self._bits(seed))

    def _bits(self, seed: int) -> list[int]:
        digest = hashlib.blake2b((seed % (1 << 64)).to_bytes(8, "little"), digest_size=8 * _HASHES).digest()
        size = 8 * len(self._table)
        return [int.from_bytes(digest[8 * i : 8 * i + 8], "little") % size for i in range(_HASHES)]

    @property
    def table(self) -> NDArray[np.uint8]:
        """Bits of the filter, for a snapshot, shape (bits / 8,)."""
        return self._table

    @classmethod
    def of_table(cls, table: NDArray[np.uint8]) -> SeenSeeds:
        seen = cls(bits=8 * len(table))
        seen._table[:] = table
        return seen
