"""Hash of a tokenizer, which ties stores, checkpoints and shared turns to one policy.

It covers the text of each token id, and which tokens are special. Not covered: how a text is split, the chat
template, and which special token ends a text. Turns of tokenizers that differ only there are interchangeable.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any

logger = logging.getLogger(__name__)


def tokenizer_hash(name: str, **where: Any) -> str:
    """Return the hash of a model's tokenizer; empty if transformers cannot read one.

    Args:
        name: A folder, or the id of a cached Hugging Face model; nothing is downloaded.
        where: Further arguments of ``AutoTokenizer.from_pretrained``.
    """
    if not name:
        return ""
    try:
        from transformers import AutoTokenizer

        return hash_of(AutoTokenizer.from_pretrained(name, local_files_only=True, **where))
    except Exception as error:  # files of others, read by code of others: without a tokenizer an engine runs as well
        logger.info("stores of drafts are not tied to a tokenizer, as %s has none: %s", name, error)
        return ""


def hash_of(tokenizer: Any) -> str:
    """Return the hash of a Hugging Face tokenizer, 32 hexadecimal digits."""
    special = {token for token, how in tokenizer.added_tokens_decoder.items() if how.special}
    hashed = hashlib.blake2b(digest_size=16)
    for text, token in sorted(tokenizer.get_vocab().items(), key=lambda one: one[::-1]):
        hashed.update(f"{token} {token in special} {len(text)} {text}\n".encode("utf-8", "surrogatepass"))
    return hashed.hexdigest()
