"""End tokens that a model's own files name, beside its tokenizer's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def model_ends(name: str) -> tuple[int, ...]:
    """End tokens of a model's ``generation_config.json``, as transformers reads them; of ``config.json`` without any.

    Args:
        name: A folder, or an id of the hub whose files are in the cache; others have none.
    """
    for file in ("generation_config.json", "config.json"):
        ends = _settings(name, file).get("eos_token_id")
        if ends is not None:
            return tuple(ends) if isinstance(ends, list) else (ends,)
    return ()


def _settings(name: str, file: str) -> dict[str, Any]:
    path: Any = Path(name, file)
    if not name:
        return {}
    if not Path(name).is_dir():
        try:
            from huggingface_hub import try_to_load_from_cache

            path = try_to_load_from_cache(name, file)
        except (ImportError, ValueError):  # no id of the hub
            return {}
    try:
        read = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):  # not there
        return {}
    return {**(read.get("text_config") or {}), **read}
