"""What a model on disk says, computed by transformers alone: the reference for engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.noise import exponential


class PolicyLaw:
    """A model on the CPU in float64.

    Its frequencies of rotation, which no file holds, are compared with their formula: a process that engines have
    changed can leave them to chance, and such a reference is wrong without a word.
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

    def logits(
        self, rows: Sequence[Sequence[int]], positions: Sequence[Sequence[int]] | None = None
    ) -> NDArray[np.float64]:
        """Of the next token after each of some prompts of the same length, shape (rows, vocabulary)."""
        places = None if positions is None else self._torch.tensor(positions)
        with self._torch.no_grad():
            return self._model(self._torch.tensor(rows), position_ids=places).logits[:, -1].double().numpy()

    def logprobs(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """Of a turn after a prompt, at temperature 1."""
        with self._torch.no_grad():
            logits = self._model(self._torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        return logits.double().log_softmax(-1)[range(len(tokens)), list(tokens)].tolist()

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The likeliest turn of ``count`` tokens."""
        turn: list[int] = []
        for _ in range(count):
            turn.append(int(self.logits([[*prompt, *turn]]).argmax()))
        return turn

    def seeded(
        self,
        prompt: Sequence[int],
        count: int,
        seed: int,
        law: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    ) -> list[int]:
        """The turn of ``count`` tokens that a seed says: at each place the clock that rings first."""
        turn: list[int] = []
        for place in range(count):
            p = law(self.logits([[*prompt, *turn]])[0])
            clocks = exponential(np.array(seed, np.uint64), np.array(place), np.arange(len(p)))
            turn.append(int(np.divide(clocks, p, out=np.full(len(p), np.inf), where=p > 0).argmin()))
        return turn

    def turns(
        self, prompt: Sequence[int], count: int, law: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    ) -> dict[tuple[int, ...], float]:
        """The probability of each turn of ``count`` tokens, where ``law`` makes probabilities of logits."""
        found: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(count):
            said = list(found)
            p = law(self.logits([[*prompt, *turn] for turn in said]))
            found = {
                (*turn, token): found[turn] * float(p[row, token])
                for (row, turn), token in product(enumerate(said), range(p.shape[1]))
                if p[row, token] > 0
            }
        return found


def chi_square(drawn: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float], *, least: float = 5.0) -> float:
    """The p-value of Pearson's test; cells with fewer than ``least`` expected draws are taken together.

    0 where something was drawn that cannot be.
    """
    from scipy.stats import chi2

    count = sum(drawn.values())
    if any(turn not in law for turn in drawn):
        return 0.0
    cells: list[tuple[float, float]] = []
    rest_expected = rest_seen = 0.0
    for turn, p in law.items():
        if p * count >= least:
            cells.append((p * count, drawn[turn]))
        else:
            rest_expected, rest_seen = rest_expected + p * count, rest_seen + drawn[turn]
    if rest_expected >= least:
        cells.append((rest_expected, rest_seen))
    statistic = sum((seen - expected) ** 2 / expected for expected, seen in cells)
    return float(chi2.sf(statistic, len(cells) - 1))
