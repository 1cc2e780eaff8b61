"""Fit the weights that a forest starts from (``spec_tree/kernels/weights.json``).

Recorded turns of the traces' ``select`` half are replayed one by one. The network's inputs at each node next to the
accepted path, and whether the node came true, are its examples; every trace has the same weight. The shares of right
votes by kind and length pool all traces. No weight depends on a token, a state or a trace.

    python benchmarks/fit_weights.py --data ../shared --rounds 2
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drafting.replay import accepted
from drafting.traces import TRACES, Turn, folder, load
from numpy.typing import NDArray

from turntree.spec_tree import SpecForest
from turntree.spec_tree.kernels import batch as kernels
from turntree.spec_tree.kernels import weights
from turntree.spec_tree.kernels.growth import scratch
from turntree.spec_tree.kernels.layout import HIDDEN, INPUTS, DraftLimits, DraftNodes

LEARNT, VOTE = 13, 0  #: indices of the inputs that are also added to the output


class Watched(SpecForest):
    def watch(self, row: int, budget: int, room: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Draft for one row as ``draft`` does; return tokens and parents, and the inputs by node."""
        work = scratch()
        tokens = np.empty(budget, np.int32)
        out = DraftNodes(tokens, np.empty_like(tokens), np.empty_like(tokens), np.empty(budget, np.float32))
        count = kernels.draft(
            np.array([row]),
            np.array([room]),
            DraftLimits(budget=budget, floor=0.0, chain=False, ends=self._ends),
            self.live_table.turns.records,
            self.sources,
            self.weights,
            work,
            out,
            0,
            np.zeros(1, np.int64),
        )
        return out.tokens[:count], out.parents[:count], work["inputs"][0]


def examples(turns: Sequence[Turn], budget: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], float]:
    forest = Watched()
    seen: list[NDArray[Any]] = []
    true: list[NDArray[Any]] = []
    steps = emitted = 0
    for turn in turns:
        (handle,) = forest.begin([turn.state], [turn.prompt])
        row, done, target = int(forest.live_table.rows([handle])[0]), 0, turn.tokens
        while done < len(target):
            tokens, parents, inputs = forest.watch(row, budget, len(target) - done)
            depth = len(accepted(tokens.tolist(), parents.tolist(), target.tolist(), done))
            count = int(forest.live_table.turns.node_count[row])
            above, said = (
                forest.live_table.turns.node_parent[row, :count],
                forest.live_table.turns.node_token[row, :count],
            )
            node = 0
            for token in target[done : done + depth + 1].tolist():
                children = np.flatnonzero(above == node)
                children = children[children > 0]
                if not len(children):
                    break
                right = said[children] == token
                weighed = forest.live_table.turns.node_hashes[row, children, 1] >= 0
                seen.append(inputs[children][weighed])
                true.append(right[weighed])
                if not right.any():
                    break
                node = int(children[np.argmax(right)])
            new = target[done : done + depth + 1]
            forest.commit([handle], [new.tolist()])
            steps, emitted, done = steps + 1, emitted + len(new), done + len(new)
        forest.end([handle])
    return np.concatenate(seen), np.concatenate(true), forest.weights["tried"][0].copy(), emitted / steps


def fit(seen: NDArray[Any], true: NDArray[Any], *, epochs: int, seed: int) -> dict[str, Any]:
    # The network's output is added to what is learnt online and to the votes.
    torch.manual_seed(seed)
    inputs, outcomes = torch.from_numpy(seen), torch.from_numpy(true.astype(np.float32))
    inner = torch.nn.Parameter(torch.randn(INPUTS, HIDDEN) * 0.2)
    bias = torch.nn.Parameter(torch.zeros(HIDDEN))
    outer = torch.nn.Parameter(torch.randn(HIDDEN) * 0.1)
    scale = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([inner, bias, outer, scale], lr=3e-3)
    loss = torch.zeros(())
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - epoch / epochs)
        total, parts = 0.0, 0
        for part in torch.randperm(len(inputs)).split(1024):
            x = inputs[part]
            logit = x[:, LEARNT] + scale * x[:, VOTE] + torch.relu(x @ inner + bias) @ outer
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, outcomes[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, parts = total + loss.item(), parts + 1
        print(f"  epoch {epoch + 1}: {total / parts:.4f} nats a node", flush=True)
    fitted = {"scale": scale, "inner": inner, "bias": bias, "outer": outer}
    return {name: np.round(value.detach().numpy().astype(float), 4).tolist() for name, value in fitted.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the weights that a forest starts from.")
    parser.add_argument("--data", type=Path, help="folder that has traces/ (default: $TURNTREE_DATA)")
    parser.add_argument("--rounds", type=int, default=2, help="replays, each with the weights of the one before")
    parser.add_argument("--per-trace", type=int, default=60_000, help="examples of each trace")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--budget", type=int, default=16, help="nodes a draft")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).resolve().parent.parent / "spec_tree/kernels/weights.json"
    )
    args = parser.parse_args()
    traces = folder(args.data)
    rng = np.random.default_rng(0)
    for round_ in range(args.rounds):
        seen, true, votes = [], [], []
        for name, states in TRACES.items():
            trace = load(traces / f"{name}.npz", states=states, half="select")
            inputs, outcomes, tried, tokens_per_forward_pass = examples(trace.turns, args.budget)
            print(
                f"round {round_ + 1}: {name}: {len(outcomes)} nodes, "
                f"{tokens_per_forward_pass:.3f} tokens per forward pass",
                flush=True,
            )
            chosen = rng.permutation(len(outcomes))[: args.per_trace]
            seen.append(inputs[chosen])
            true.append(outcomes[chosen])
            votes.append(tried / np.maximum(tried[..., :1].sum(), 1))
        tried = np.sum(votes, 0)
        found = fit(np.concatenate(seen), np.concatenate(true), epochs=args.epochs, seed=0)
        found["share"] = np.round((tried[..., 1] + 3e-6) / (tried[..., 0] + 1e-5), 4).tolist()
        found["tried"] = np.round(np.minimum(tried[..., 0] * 1e5, 1000), 1).tolist()
        with tempfile.NamedTemporaryFile("w", dir=args.out.parent, suffix=".json", delete=False) as file:
            json.dump(found, file)
        Path(file.name).replace(args.out)
        weights._prior.cache_clear()


if __name__ == "__main__":
    main()
