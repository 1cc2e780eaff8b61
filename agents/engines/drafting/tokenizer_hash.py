"""The hash of a tokenizer, by which stores, checkpoints and exchanged turns are known to be of one policy.

It covers what the ids of tokens mean: the text of each, and which are special. Not covered: how a text is divided, the
chat template, and which of the special tokens ends a text; turns of tokenizers that differ in these alone are the same.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any

logger = logging.getLogger(__name__)


def tokenizer_hash(name: str, **where: Any) -> str:
    """The hash of a model's tokenizer; empty if it has none that transformers reads.

    Args:
        name: A folder, or an id of the hub whose files are in the cache; nothing is fetched.
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
    """The hash of a Hugging Face tokenizer, 32 hexadecimal digits."""
    special = {token for token, how in tokenizer.added_tokens_decoder.items() if how.special}
    hashed = hashlib.blake2b(digest_size=16)
    for text, token in sorted(tokenizer.get_vocab().items(), key=lambda one: one[::-1]):
        hashed.update(f"{token} {token in special} {len(text)} {text}\n".encode("utf-8", "surrogatepass"))
    return hashed.hexdigest()
