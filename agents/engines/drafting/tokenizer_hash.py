"""Hash of a tokenizer, which ties stores, checkpoints and shared turns to one policy.

The hash covers the text of each token id, and which tokens are special. Not covered: how a text is split, the chat
template, and which special token ends a text. Tokenizers that differ only in these can share turns (token ids).
"""

from __future__ import annotations

import hashlib
import logging
from os import PathLike
from pathlib import Path
from typing import Any

from turntree.agents.errors import UsageError
from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.errors import ForestError

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
    except Exception as error:  # third-party files and code; an engine can run without the hash
        logger.info("draft stores are not tied to a tokenizer, since none of %s can be read: %s", name, error)
        return ""


def hash_of(tokenizer: Any) -> str:
    """Return the hash of a Hugging Face tokenizer, 32 hexadecimal digits."""
    special = {token for token, how in tokenizer.added_tokens_decoder.items() if how.special}
    hashed = hashlib.blake2b(digest_size=16)
    for text, token in sorted(tokenizer.get_vocab().items(), key=lambda one: one[::-1]):
        hashed.update(f"{token} {token in special} {len(text)} {text}\n".encode("utf-8", "surrogatepass"))
    return hashed.hexdigest()


def given_store(path: str | PathLike[str], tokenizer: str) -> str:
    """Check the store of another run before an engine starts, and return its absolute path.

    ``path`` is a file of a store, or a folder with such files (a run, or its checkpoints); ``tokenizer`` is the hash of
    the policy's tokenizer, empty if unknown.

    Raises:
        UsageError: If there is no store, or its turns are from another tokenizer.
    """
    # Imported here because it loads numba, which the hash does not need.
    from turntree.spec_tree.store.snapshot import read_imported

    try:
        absolute = Path(path).expanduser().absolute()
        read_imported(absolute, ForestConfig(tokenizer=tokenizer))
    except (OSError, RuntimeError, ForestError) as error:  # RuntimeError: unknown home folder
        raise UsageError(f"cannot import turns from {path}: {error}") from error
    return str(absolute)
