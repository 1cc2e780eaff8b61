from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from turntree.agents.episodes.dialogue import canonical_call, canonical_json


def key_of(*parts: bytes | str) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()


def chain(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Return a key for every prefix of a dialogue, shape (messages + 1,).

    Two prefixes share a key if their messages and tools are equal. Tool call ids, which some clients rewrite, and
    fields added by clients are ignored.
    """
    keys = [key_of(canonical_json(list(tools)))]
    for message in messages:
        keys.append(next_key(keys[-1], message))
    return keys


def next_key(key: bytes, message: Mapping[str, Any]) -> bytes:
    calls = [canonical_call(call) for call in message.get("tool_calls", ())]
    return key_of(key, str(message["role"]), str(message["content"]), *calls)


def ids_of(message: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(call.get("id", "") for call in message.get("tool_calls", ()))
