"""``verify_kernel``'s functions in plain PyTorch on the CPU: the reference, and the stand-in without Triton."""

import numpy as np
import torch
from torch import Tensor

from turntree.agents.engines.drafting.race import race

GREEDY = 1e-5
NONE = -1


def draw_rows(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    indices: Tensor,
    *,
    shift: int = 0,
    ends: Tensor | None = None,
    width: int = 1,
) -> Tensor:
    # The earliest ``E / exp(logit)`` in float64, or the first of the largest logits for greedy rows.
    count = len(logits)
    last = np.arange(1, rows.shape[1] + 1) if ends is None else ends.numpy()
    owner = torch.from_numpy(np.searchsorted(last, np.arange(count), side="right"))
    seeds, moved, bits = rows[:, owner]
    temperature = bits.view(torch.float64).float()
    greedy = temperature < GREEDY
    law = logits.float() / torch.where(greedy, 1.0, temperature)[:, None]
    weights = (law.double() - law.double().amax(-1, keepdim=True)).exp()
    winners = race(weights, seeds, positions[indices.long() + shift] + 1 + moved)
    winners = torch.where(greedy, law.argmax(-1), winners)
    chosen = law.gather(1, winners[:, None])
    logprobs = law.log_softmax(-1).gather(1, winners[:, None])[:, 0]
    ranks = torch.where(greedy, (law >= chosen).sum(-1), 0)
    return torch.stack([winners.int(), logprobs.view(torch.int32), ranks.int()])


def match_rows(found: Tensor, drafts: Tensor, ends: Tensor, width: int) -> Tensor:
    out = torch.zeros((3, len(ends), width), dtype=torch.int32)
    out[0] = NONE
    turn_drafts = drafts.tolist()
    begin = 0
    for request, end in enumerate(ends.tolist()):
        mine = found[:, begin:end]
        turn_draft, turn_drafts = turn_drafts[: end - begin - 1], turn_drafts[end - begin - 1 :]
        kept = 0
        while kept < len(turn_draft) and mine[0, kept] == turn_draft[kept]:
            kept += 1
        out[:, request, : kept + 1] = mine[:, : kept + 1]
        begin = end
    return out
