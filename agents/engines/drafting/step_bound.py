"""The default bound of a step's drafts on an accelerator.

Verification makes several float32 tensors like the logits, one row a token: at a
vocabulary of 151,936 each takes 1.2 GB for 2,048 tokens, and 256 requests with drafts of
8 would have 2,304. Engines do not count that when they divide an accelerator's memory.
"""

from __future__ import annotations

VERIFIED = 2048
"""Tokens of a step, the last sampled one of each request included."""


def most_drafted(given: int | None, rows: int, *, device: str, most: int) -> int:
    """Most draft tokens of all requests together in one step.

    Args:
        given: The setting; ``None`` is the default: on an accelerator what ``VERIFIED`` leaves, on the CPU no bound.
        rows: Requests of the step.
        device: Type of the engine's device.
        most: What the engine's other limits allow.

    >>> most_drafted(None, 256, device="cuda", most=2304), most_drafted(None, 16, device="cuda", most=128)
    (1792, 128)
    >>> most_drafted(None, 256, device="cpu", most=2304), most_drafted(2000, 256, device="cuda", most=2304)
    (2304, 2000)
    """
    bound = most if device == "cpu" else VERIFIED - rows
    return max(0, min(most, bound if given is None else given))
