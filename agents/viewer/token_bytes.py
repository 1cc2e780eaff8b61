"""The bytes of each token, so that a page can decode text itself.

A token may be part of a character. The bytes of such tokens can be joined; their decoded texts cannot. Supported:
byte-level BPE, and SentencePiece with byte fallback. With other tokenizers, each token is decoded by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def token_bytes(tokenizer: Any, ids: Iterable[int]) -> dict[int, bytes]:
    """Return the bytes of each token in ``ids``; ids that the tokenizer lacks are left out."""
    read = _reader(tokenizer)
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    size = len(tokenizer)
    known: dict[int, bytes] = {}
    for number in ids:
        if not 0 <= number < size:
            continue
        token = tokenizer.convert_ids_to_tokens(number)
        if token is None:
            continue
        known[number] = token.encode() if number in special else read(number, token)
    return known


def _reader(tokenizer: Any) -> Callable[[int, str], bytes]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = "" if backend is None or backend.decoder is None else repr(backend.decoder)
    if "ByteLevel" in decoder:
        return lambda number, token: _byte_level(token)
    if "ByteFallback" in decoder or "Metaspace" in decoder or "▁" in decoder:
        return lambda number, token: _sentencepiece(token)
    return lambda number, token: tokenizer.decode([number], skip_special_tokens=False).encode()


def _byte_level(token: str) -> bytes:
    alphabet = _byte_alphabet()
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    # Added tokens are stored as plain text.
    return token.encode()


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE.match(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    # Byte-level BPE maps printable Latin-1 bytes to themselves, and all other bytes, in order, to U+0100 onwards.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    escaped = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + index): byte for index, byte in enumerate(escaped)}
