"""One of two tensor-parallel ranks of SGLang's draft worker, over gloo on the CPU: ``two_ranks.py RANK FILE``.

Both ranks serve the same requests, but the second has learnt other turns and has a different clock. Each prints the
trees verified in each pass and how often its store was asked, once ``led`` by the first rank and once ``alone``.
"""

import itertools
import json
import sys
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from turntree.agents.engines.sglang.settings import SglangSettings
from turntree.agents.engines.sglang.worker.drafter import TreeDrafter
from turntree.agents.engines.sglang.worker.ranked import FollowingDrafter, LeadingDrafter
from turntree.spec_tree import DialogueState, SpecForest

PROMPT = [1, 2, 3]
TURNS = [[5, 6, 7, 8, 9, 10, 11, 12], [5, 6, 20, 21, 22, 23, 24, 25]]
WIDEST = 8


class Gloo:
    def __init__(self) -> None:
        self.rank_in_group = dist.get_rank()

    def broadcast_object(self, obj: Any | None = None, src: int = 0) -> Any:
        held = [obj]
        dist.broadcast_object_list(held, src=src)
        return held[0]


def drafter_of(rank: int, *, alone: bool) -> tuple[TreeDrafter | FollowingDrafter, SpecForest]:
    settings, forest, ticks = SglangSettings(min_probability=0.02), SpecForest(), itertools.count()
    for turn in TURNS[rank:] * 3:
        forest.insert(DialogueState.from_tokens(PROMPT), turn)
    forest.draft = counted(forest.draft)  # type: ignore[method-assign]
    clock = (lambda: next(ticks) * 1e-6) if rank else (lambda: next(ticks) ** 1.5)
    if alone:
        return TreeDrafter(settings, forest, WIDEST, clock=clock), forest
    if rank == 0:
        return LeadingDrafter(Gloo(), settings, forest, WIDEST, clock=clock), forest
    return FollowingDrafter(Gloo(), settings.widths_within(WIDEST)), forest


asked = 0


def counted(draft: Any) -> Any:
    def counting(*args: Any, **kwargs: Any) -> Any:
        global asked
        asked += 1
        return draft(*args, **kwargs)

    return counting


def play(drafter: Any) -> list[Any]:
    seen, running = [], []
    for passed in range(30):
        if len(running) < 4:
            sampling = SimpleNamespace(custom_params=None, max_new_tokens=7)
            turn = TURNS[passed % 2]
            served = SimpleNamespace(
                rid=str(passed), sampling_params=sampling, origin_input_ids=PROMPT, output_ids=turn[:1], turn=turn
            )
            served.finished_reason = None
            running.append(served)
        drafter.prompts(running[-1:])
        rows = drafter.propose(running)
        seen.append([rows.width, rows.tokens.tolist(), rows.child.tolist(), rows.sibling.tolist(), drafter.drafted()])
        for request in running:
            said = len(request.output_ids) + 1
            request.output_ids = request.turn[:said]
            if said >= 7:
                request.finished_reason = SimpleNamespace(to_json=lambda: {"type": "length"})
        told = drafter.settle()
        assert len(told.drafted) == len(told.accepted) == len(running)
        running = [request for request in running if request.finished_reason is None]
    drafter.idle()
    return seen


def main(rank: int, file: str) -> None:
    global asked
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    found = {}
    for how in ("led", "alone"):
        asked = 0
        drafter, forest = drafter_of(rank, alone=how == "alone")
        passes = play(drafter)
        found[how] = {"passes": passes, "asked": asked, "held": forest.stats().rollouts}
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
