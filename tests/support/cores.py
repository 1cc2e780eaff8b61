"""Tiny random decoders, stores that draft on purpose, and ways to run the engine's core by hand."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from draft_trees import draft_trees
from tiny_llama import random_llama

from turntree.agents.engines.local import LocalEngineConfig, Speculation
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.protocol import Completion, Sampling
from turntree.spec_tree import DialogueState, DraftBatch, SpecForest

CONFIG = LocalEngineConfig(max_batch=4, max_context=128, dtype="float64", threads=1)
"""Of an engine around ``tiny_llama()``."""


def tiny_llama(vocabulary: int = 32, *, seed: int = 0, sharpness: float = 3.0, dtype=torch.float64):
    """A random Llama; ``sharpness`` scales its weights, so that its choices are not all alike."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = random_llama(vocabulary, seed=seed, max_position_embeddings=256, **heads)
    for parameter in model.parameters():
        parameter.data.mul_(sharpness)
    return model.to(dtype).eval()


class AdversarialForest(SpecForest):
    """Drafts random trees, whatever was said: the output must not care."""

    def __init__(self, vocabulary: int, seed: int = 0, branching: int = 3) -> None:
        super().__init__()
        self._vocabulary = vocabulary
        self._rng = np.random.default_rng(seed)
        self._branching = branching
        self.live: set[int] = set()
        self.withdrawn = 0

    def begin(self, states: Sequence[DialogueState], contexts: Any = None) -> list[int]:
        handles = super().begin(states, contexts)
        self.live.update(handles)
        return handles

    def end(self, handles: Sequence[int], *, keep: bool = True) -> None:
        self.live.difference_update(handles)
        self.withdrawn += 0 if keep else len(handles)
        super().end(handles, keep=keep)

    def draft(self, handles, *, max_nodes, max_depths, **_) -> DraftBatch:
        rows = []
        for limit in max_depths:
            row: list[tuple[int, int]] = []
            depths: list[int] = []
            for _ in range(int(self._rng.integers(0, max_nodes + 1))):
                parent = int(self._rng.integers(-1, len(row)))
                depth = 1 if parent < 0 else depths[parent] + 1
                token = int(self._rng.integers(self._vocabulary))
                if depth <= limit and (token, parent) not in row:
                    row.append((token, parent))
                    depths.append(depth)
            rows.append(row)
        return draft_trees(*rows)


class FixedForest:
    """Drafts the same tree for every row and remembers nothing."""

    def __init__(self, tokens: Sequence[int], parents: Sequence[int], depths: Sequence[int]) -> None:
        self._tree = list(zip(zip(tokens, parents, strict=True), depths, strict=True))

    def begin(self, states: Sequence[DialogueState], contexts: Any = None) -> list[int]:
        return [0] * len(states)

    def draft(self, handles, *, max_depths, **_) -> DraftBatch:
        return draft_trees(*([node for node, depth in self._tree if depth <= limit] for limit in max_depths))

    def commit(self, handles, tokens) -> None:
        pass

    def end(self, handles, *, keep: bool = True) -> None:
        pass


def run_core(
    model: torch.nn.Module,
    prompts: Iterable[Sequence[int]],
    sampling: Sampling | Callable[[int], Sampling],
    *,
    forest: Any = None,
    speculation: Speculation | None = None,
    arrivals: Callable[[int], int] = lambda _: 0,
    turn_drafts: Callable[[int], Sequence[int]] = lambda _: (),
    core: EngineCore | None = None,
    **settings,
) -> list[Completion]:
    """Run prompts through a core; request ``i`` joins at step ``arrivals(i)`` with the draft
    ``turn_drafts(i)`` and seed ``i``, unless its sampling has a seed. Errors of requests are raised."""
    if core is None:
        config = LocalEngineConfig(**{"max_context": 128, "speculation": speculation} | settings)
        core = EngineCore(Policy(model), config, forest)
    done: dict[int, Request] = {}
    waiting = []
    for i, prompt in enumerate(prompts):
        how = sampling(i) if callable(sampling) else sampling
        request = Request(
            prompt=list(prompt),
            sampling=how,
            state=DialogueState.from_tokens(prompt),
            seed=i if how.seed is None else how.seed,
            turn_draft=list(turn_drafts(i)),
            deliver=lambda r, i=i: done.__setitem__(i, r),
        )
        waiting.append((arrivals(i), request))
    step = 0
    while waiting or core.busy:
        for _, request in [w for w in waiting if w[0] <= step]:
            core.add(request)
        waiting = [w for w in waiting if w[0] > step]
        core.step()
        step += 1
    for request in done.values():
        if request.error is not None:
            raise request.error
    return [done[i].completion() for i in range(len(done))]


def same_turns(some: list[Completion], others: list[Completion]) -> bool:
    """Whether the tokens are the same, and their log-probabilities up to rounding in float64."""
    return [t.token_ids for t in some] == [t.token_ids for t in others] and np.allclose(
        np.concatenate([t.logprobs for t in some]), np.concatenate([t.logprobs for t in others]), atol=1e-9
    )
