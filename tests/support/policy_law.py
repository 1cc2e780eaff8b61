"""What a saved model samples, computed with transformers alone: the reference for engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.rules.noise import exponential
from turntree.spec_tree.rules.transforms import Transforms, distribution


class PolicyLaw:
    """A model on the CPU in float64.

    Its rotary frequencies, which are not in the checkpoint, are checked against their formula: a process that engines
    have patched can leave them uninitialised, and the reference would be silently wrong.
    """

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import LlamaForCausalLM

        self._torch = torch
        self._model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
        config = self._model.config
        halves = torch.arange(0, config.head_dim, 2) / config.head_dim
        wanted = config.rope_parameters["rope_theta"] ** -halves
        torch.testing.assert_close(self._model.model.rotary_emb.inv_freq, wanted)
        self._turns: dict[tuple[Any, ...], list[int]] = {}

    def weights(self) -> dict[str, Any]:
        return {name: weight.float() for name, weight in self._model.state_dict().items()}

    def changed(self, weights: dict[str, Any]) -> PolicyLaw:
        other = copy(self)
        other._model = deepcopy(self._model)
        other._model.load_state_dict(weights, strict=False)
        other._turns = {}
        return other

    def logits(
        self, rows: Sequence[Sequence[int]], positions: Sequence[Sequence[int]] | None = None
    ) -> NDArray[np.float64]:
        """Return next-token logits after prompts of equal length, shape (rows, vocabulary)."""
        position_ids = None if positions is None else self._torch.tensor(positions)
        with self._torch.no_grad():
            return self._model(self._torch.tensor(rows), position_ids=position_ids).logits[:, -1].double().numpy()

    def along(self, prompt: Sequence[int], tokens: Sequence[int]) -> NDArray[np.float64]:
        """Return logits before each of ``tokens`` and after the last, shape (tokens + 1, vocabulary)."""
        with self._torch.no_grad():
            logits = self._model(self._torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 :]
        return np.asarray(logits.double().numpy())

    def logprobs(self, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0) -> list[float]:
        laws = distribution(self.along(prompt, tokens), Transforms(temperature=temperature))
        return np.log(laws[range(len(tokens)), list(tokens)]).tolist()

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        return self._turn(prompt, count, (), lambda position, logits: logits.argmax())

    def seeded(self, prompt: Sequence[int], count: int, seed: int, **transforms: float) -> list[int]:
        """Return the ``count`` tokens of a seed after ``Transforms``: at each position, the first clock that rings."""

        def first(position: int, logits: NDArray[np.float64]) -> Any:
            p = distribution(logits, Transforms(**transforms))[0]
            clocks = exponential(np.array(seed, np.uint64), np.array(position), np.arange(len(p)))
            return np.divide(clocks, p, out=np.full(len(p), np.inf), where=p > 0).argmin()

        return self._turn(prompt, count, (seed, *sorted(transforms.items())), first)

    def _turn(self, prompt: Sequence[int], count: int, how: tuple[Any, ...], draw: Callable[..., Any]) -> list[int]:
        turn, kept = self._turns.setdefault((*prompt, how), []), None
        while len(turn) < count:
            with self._torch.no_grad():
                tokens = self._torch.tensor([turn[-1:] if kept else [*prompt, *turn]])
                out = self._model(tokens, past_key_values=kept, use_cache=True)
            kept = out.past_key_values
            turn.append(int(draw(len(turn), out.logits[:, -1].double().numpy())))
        return turn[:count]

    def turns(self, prompt: Sequence[int], count: int, **transforms: float) -> dict[tuple[int, ...], float]:
        """Return the probability of each turn of ``count`` tokens after ``Transforms``."""
        found: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(count):
            said = list(found)
            p = distribution(self.logits([[*prompt, *turn] for turn in said]), Transforms(**transforms))
            found = {
                (*turn, token): found[turn] * float(p[row, token])
                for (row, turn), token in product(enumerate(said), range(p.shape[1]))
                if p[row, token] > 0
            }
        return found


def chi_square(drawn: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], *, least: float = 5.0) -> float:
    """Return the p-value of Pearson's test; 0 if an impossible turn was drawn.

    Cells with fewer than ``least`` expected draws are merged.
    """
    import torch  # in place of scipy, which an environment for GPUs may lack

    count = sum(drawn.values())
    if any(turn not in expected for turn in drawn):
        return 0.0
    cells: list[tuple[float, float]] = []
    rest_expected = rest_seen = 0.0
    for turn, p in expected.items():
        if p * count >= least:
            cells.append((p * count, drawn[turn]))
        else:
            rest_expected, rest_seen = rest_expected + p * count, rest_seen + drawn[turn]
    if rest_expected >= least:
        cells.append((rest_expected, rest_seen))
    statistic = sum((seen - expected) ** 2 / expected for expected, seen in cells)
    half = torch.tensor([len(cells) - 1, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1]))
