from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from turntree.agents.engines.protocol import Completion, Sampling, TurnRequest
from turntree.spec_tree import DialogueState

GROUP = 8


def requests(
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    tokens: int,
    temperature: float = 1.0,
    epoch: int = 0,
    seeded: bool = True,
    env: str = "",
) -> list[TurnRequest]:
    """Return ``count`` turns as a training requests them, with new seeds in every epoch.

    Args:
        prompts: Token ids.
        count: Turns.
        tokens: Per turn.
        temperature: Of the sampling.
        epoch: Number of the epoch.
        seeded: Whether a turn has a seed.
        env: Name under which the turns are stored; turns of other names are not drafted.
    """
    found = []
    for i in range(count):
        task = i // GROUP % len(prompts)
        prompt = tuple(prompts[task])
        how = Sampling(temperature=temperature, max_tokens=tokens, seed=epoch * 1_000_000 + i if seeded else None)
        state = DialogueState.from_tokens(list(prompt), task=str(task), env=env or "first hour")
        found.append(TurnRequest(prompt, how, state=state))
    return found


async def played(engine: Any, asked: Sequence[TurnRequest]) -> list[Completion]:
    return list(await asyncio.gather(*(engine.generate(request) for request in asked)))


def differing(one: Sequence[Completion], other: Sequence[Completion]) -> int:
    return sum(a.token_ids != b.token_ids for a, b in zip(one, other, strict=True))


def tokens_per_forward_pass(turns: Sequence[Completion]) -> float:
    steps = sum(turn.draft.verify_steps for turn in turns)
    return sum(len(turn.token_ids) for turn in turns) / steps if steps else 1.0
