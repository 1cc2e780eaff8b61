from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from turntree.agents.engines.protocol import Sampling


class Checked(NamedTuple):
    prompt: list[int]  #: shape (prompt,)
    tokens: list[int]  #: tokens that come with the prompt: a draft, or text to score


def checked(
    prompt_ids: Sequence[int], sampling: Sampling, token_ids: Sequence[int], name: str, *, vocabulary: int
) -> Checked:
    """Return a request as lists of integers, checked before it reaches the engine's thread.

    ``name`` is the name of ``token_ids`` in messages.

    Raises:
        ValueError: If the prompt is empty, a token is unknown, or more top tokens are requested than there are.
    """
    prompt, tokens = [int(token) for token in prompt_ids], [int(token) for token in token_ids]
    if not prompt:
        raise ValueError("the prompt is empty; the policy needs at least one token to go on from")
    for what, some in (("prompt", prompt), (name, tokens)):
        low, high = min(some, default=0), max(some, default=0)
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"the {what} holds token {low if low < 0 else high}, the model knows 0 to {vocabulary - 1}"
            )
    if sampling.top_logprobs > vocabulary:
        raise ValueError(
            f"{sampling.top_logprobs} most probable tokens are wanted at each position, the model knows {vocabulary}; "
            "ask for fewer"
        )
    return Checked(prompt, tokens)
