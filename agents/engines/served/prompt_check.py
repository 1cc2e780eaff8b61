from __future__ import annotations

from collections.abc import Sequence


def checked_prompt(tokens: Sequence[int], max_context: int | None, vocabulary: int | None = None) -> list[int]:
    """Return the tokens of a prompt as Python integers, or raise before an engine's process sees them.

    Args:
        tokens: Prompt and given tokens, shape (tokens,).
        max_context: Maximum tokens of prompt and response; ``None`` leaves the bound to the engine.
        vocabulary: Tokens that the model knows; ``None`` if unknown.

    Raises:
        ValueError: If there are none, if no token can be sampled after them, or if one is unknown, which would crash
            the engine's process.
    """
    if not tokens:
        raise ValueError("the prompt is empty; the policy needs at least one token to go on from")
    if max_context is not None and len(tokens) >= max_context:
        raise ValueError(
            f"prompt and given tokens are {len(tokens)}, max_context is {max_context}: no room is left to sample; "
            "raise max_context or shorten the dialogue"
        )
    found = [int(token) for token in tokens]
    last = (vocabulary or 1 << 31) - 1
    if min(found) < 0 or max(found) > last:
        strange = next(token for token in found if not 0 <= token <= last)
        raise ValueError(f"prompt and given tokens hold token {strange}, the model knows 0 to {last}")
    return found
