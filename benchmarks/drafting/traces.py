"""Recorded turns to replay.

A turn is one request: all token ids before it are its prompt. Each trace gives its first states, split into two halves
of every other state: parameters are chosen on ``select`` and figures are reported on ``report``.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree import DialogueState

Half = Literal["select", "report", "all"]

#: trace -> starting states of dialogues that are replayed, both halves together
TRACES = {
    "math_cot_100x8": 40,
    "gsm8k_1319x4": 150,
    "humaneval_164x40": 40,
    "game24_100x40": 30,
    "synthetic_rl": 6,
    "tau_airline_50x4": 25,
    "tot_text_100x10": 15,
}
#: trace -> tries at each state: first of one epoch, first of the next, end of that
EPOCHS = {
    "math_cot_100x8": (0, 4, 8),
    "tau_airline_50x4": (0, 2, 4),
    "synthetic_rl": (16, 24, 32),
    "tot_text_100x10": (0, 3, 8),
    "game24_100x40": (0, 8, 16),
}
RECORDED = {"demo": 32, "smollm2": 8}  #: as ``EPOCHS``, for the traces that are part of the repository
RECORDED_FOLDER = Path(__file__).resolve().parents[1] / "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    state: DialogueState
    prompt: NDArray[np.int32]  #: all token ids before the turn, shape (prompt,)
    tokens: NDArray[np.int32]  #: shape (tokens,)
    start: int  #: number of the dialogue's starting state
    sample: int  #: number of the try at that state, counted over the epochs from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Turns in a trainer's order: epoch, sample, state."""

    name: str
    turns: list[Turn]
    end_tokens: frozenset[int]  #: the token that ends every sequence, if there is exactly one
    vocab: int

    @property
    def tokens(self) -> int:
        return sum(len(turn.tokens) for turn in self.turns)


class NoTraces(LookupError):
    """The recorded traces are not on this machine."""


def folder(given: Path | None = None) -> Path:
    """Return the folder of the traces: below ``given``, else $TURNTREE_DATA, else ../shared of the repository.

    Raises:
        NoTraces: If there is none.
    """
    repository = Path(__file__).resolve().parents[2]
    path = (given or Path(os.environ.get("TURNTREE_DATA", repository.parent / "shared"))) / "traces"
    if not path.is_dir():
        raise NoTraces(
            f"no recorded traces: {path} is missing (pass --data, set TURNTREE_DATA, or take those of the repository: "
            "--traces demo smollm2 generated)"
        )
    return path


def find(name: str, data: Path | None = None) -> Path:
    """Return the file of a trace, in the repository or in the folder of the recorded traces.

    Raises:
        NoTraces: If it is in neither.
    """
    return (RECORDED_FOLDER if name in RECORDED else folder(data)) / f"{name}.npz"


def half_of(states: NDArray[np.int32], half: Half) -> NDArray[np.int32]:
    # The first, third, ... state for ``select``; the second, fourth, ... for ``report``.
    return {"select": states[::2], "report": states[1::2], "all": states}[half]


def load(path: Path, *, states: int, half: Half = "all") -> Trace:
    with np.load(path) as file:
        data = {name: file[name] for name in file.files}
    chosen = np.flatnonzero(np.isin(data["state"], half_of(np.unique(data["state"])[:states], half)))
    order = chosen[np.lexsort([data[name][chosen] for name in ("state", "sample", "epoch")])]
    ends = np.unique(data["tokens"][data["offsets"][1:] - 1])
    tries: dict[int, int] = {}
    turns: list[Turn] = []
    for i in order.tolist():
        start = int(data["state"][i])
        prompt = _slice(data["prompt_tokens"], data["prompt_offsets"], start)
        said, mask = _slice(data["tokens"], data["offsets"], i), _slice(data["mask"], data["offsets"], i)
        sample = tries[start] = tries.get(start, -1) + 1
        turns += split(prompt, said, mask, start=start, sample=sample, env=path.stem)
    return Trace(
        name=path.stem,
        turns=turns,
        end_tokens=frozenset(ends.tolist() if len(ends) == 1 else ()),
        vocab=int(data["vocab"]),
    )


def epochs(path: Path) -> tuple[Trace, Trace]:
    """Return two epochs of a trace with all its states, the tries at a state side by side."""
    whole, (first, second, end) = load(path, states=1 << 30), EPOCHS[path.stem]

    def between(first: int, end: int) -> Trace:
        turns = sorted((turn for turn in whole.turns if first <= turn.sample < end), key=lambda t: (t.start, t.sample))
        return replace(whole, turns=turns)

    return between(first, second), between(second, end)


def split(
    prompt: NDArray[np.int32],
    said: NDArray[np.int32],
    mask: NDArray[np.uint8],
    *,
    start: int,
    sample: int,
    env: str,
) -> list[Turn]:
    """Return the turns of one dialogue.

    Args:
        prompt: Token ids before the dialogue, shape (prompt,).
        said: Token ids of the dialogue, shape (tokens,).
        mask: 1 where the policy sampled, shape (tokens,).
        start: Number of the starting state.
        sample: Number of the try at it.
        env: Environment id.
    """
    tokens = np.ascontiguousarray(np.concatenate([prompt, said]), np.int32)
    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0)) + len(prompt)
    history: list[str] = []
    turns: list[Turn] = []
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        state = DialogueState.from_tokens(tokens[:first].tolist(), task=str(start), tools="\n".join(history), env=env)
        turns.append(Turn(state=state, prompt=tokens[:first], tokens=tokens[first:last], start=start, sample=sample))
        history.append(str(tokens[first:last].tolist()))
    return turns


def generated(*, steps: int = 8, states: int = 32, samples: int = 8, seed: int = 0) -> Trace:
    """Generate short turns of 5 to 40 tokens over 32 tokens; every step visits the same states again.

    Each state has a few answers, made of pieces that all states share. A sample takes one answer and sometimes slips,
    after which it continues or changes to another answer.
    """
    rng = random.Random(seed)
    pieces = [[rng.randrange(31) for _ in range(rng.randint(2, 6))] for _ in range(24)]
    ways: list[list[list[int]]] = []
    for _ in range(states):
        ways.append([])
        for _ in range(3):
            way: list[int] = []
            length = rng.randint(5, 39)
            while len(way) < length:
                way += [*rng.choice(pieces), rng.randrange(31)]
            ways[-1].append(way[:length])
    turns: list[Turn] = []
    for step in range(steps):
        for index, spoken in enumerate(ways):
            prompt = np.array([index], np.int32)
            state = DialogueState.from_tokens([index], task=f"task-{index}", env="generated")
            for sample in range(samples):
                said = np.array([*_spoken(rng, spoken), 31], np.int32)
                turns.append(Turn(state=state, prompt=prompt, tokens=said, start=index, sample=step * samples + sample))
    return Trace(name="generated", turns=turns, end_tokens=frozenset({31}), vocab=32)


def _spoken(rng: random.Random, ways: list[list[int]]) -> list[int]:
    way, at = rng.choices(ways, (6, 3, 1))[0], 0
    said: list[int] = []
    while at < len(way) and len(said) < 39:
        if rng.random() < 0.08:
            said.append(rng.randrange(31))
            way = rng.choice(ways)
        else:
            said.append(way[at])
        at += 1
    return said


def _slice(values: NDArray[Any], offsets: NDArray[np.int64], i: int) -> NDArray[Any]:
    return values[offsets[i] : offsets[i + 1]]
