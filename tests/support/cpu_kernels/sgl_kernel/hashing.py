"""Hash of (seed, position, column), the source of SGLang's noise with a seed.

MurmurHash3 (32 bits) over four words: the two halves of the seed, the position, the column; one row a request.
"""

import torch

_MASK = 0xFFFFFFFF


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Hash every column of every row.

    Args:
        seed: 64-bit seeds, shape (rows,).
        positions: Shape (rows,).
        columns: Shape (columns,).

    Returns:
        32-bit hashes as uint32, shape (rows, columns).
    """
    bits = seed.view(torch.int64) if seed.dtype == torch.uint64 else seed.to(torch.int64)
    h = torch.zeros(len(bits), 1, dtype=torch.int64)
    for word in (bits & _MASK, (bits >> 32) & _MASK, positions.to(torch.int64) & _MASK):
        h = _mix(h, word[:, None])
    h = _mix(h, columns.to(torch.int64)[None, :] & _MASK) ^ 16
    h = _times(h ^ (h >> 16), 0x85EBCA6B)
    h = _times(h ^ (h >> 13), 0xC2B2AE35)
    return (h ^ (h >> 16)).to(torch.uint32)


def _mix(h: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
    word = _times(word, 0xCC9E2D51)
    word = _times(_rotate(word, 15), 0x1B873593)
    return (_times(_rotate(h ^ word, 13), 5) + 0xE6546B64) & _MASK


def _rotate(x: torch.Tensor, by: int) -> torch.Tensor:
    return ((x << by) | (x >> (32 - by))) & _MASK


def _times(x: torch.Tensor, factor: int) -> torch.Tensor:
    """The low 32 bits of a product. 64-bit products wrap, which leaves their low bits right."""
    return (x * factor) & _MASK
