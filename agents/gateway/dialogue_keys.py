"""Keys of dialogues: two requests have the same key where their messages and tools say the same.

Not compared: the ids of tool calls, which some clients replace, and whatever fields clients add.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from turntree.agents.episodes.dialogue import canonical_call, canonical_json


def key_of(*parts: bytes | str) -> bytes:
    """A digest of ``parts``."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()


def chain(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """The key of each beginning of a dialogue, shape (messages + 1,)."""
    keys = [key_of(canonical_json(list(tools)))]
    for message in messages:
        keys.append(next_key(keys[-1], message))
    return keys


def next_key(key: bytes, message: Mapping[str, Any]) -> bytes:
    """The key of a dialogue with one message more."""
    calls = [canonical_call(call) for call in message.get("tool_calls", ())]
    return key_of(key, str(message["role"]), str(message["content"]), *calls)


def ids_of(message: Mapping[str, Any]) -> tuple[str, ...]:
    """The ids of a message's calls."""
    return tuple(call.get("id", "") for call in message.get("tool_calls", ()))
