import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turntree.agents.engines.request_wire import DRAFT, KEY, to_wire
from turntree.agents.engines.sglang.settings import SglangSettings
from turntree.agents.engines.sglang.worker.drafter import StepCounts, TreeDrafter
from turntree.agents.engines.sglang.worker.rows import TreeRows
from turntree.spec_tree import DialogueState, SpecForest

SPEECH = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
STATE = DialogueState(exact=77, task="t")
EVERYTHING = SglangSettings(adaptive=False, min_probability=0.01)


def params(limit: int = 10, **custom: Any) -> SimpleNamespace:
    return SimpleNamespace(max_new_tokens=limit, custom_params={KEY: to_wire(STATE), **custom})


@dataclass
class Request:
    rid: str
    sampling_params: Any = field(default_factory=params)
    origin_input_ids: list[int] = field(default_factory=lambda: [1, 2, 3])
    output_ids: list[int] = field(default_factory=list)
    finished_reason: Any = None
    speech: list[int] = field(default_factory=lambda: SPEECH)

    def __post_init__(self) -> None:
        self.say()  # a prompt's pass samples the first token

    def say(self, *, reason: str = "length") -> int:
        token = self.speech[len(self.output_ids) % len(self.speech)]
        self.output_ids.append(token)
        if len(self.output_ids) >= self.sampling_params.max_new_tokens:
            self.finish(reason)
        return token

    def finish(self, reason: str) -> None:
        self.finished_reason = SimpleNamespace(to_json=lambda: {"type": reason})


def verify(requests: list[Request], rows: TreeRows) -> None:
    for row, request in enumerate(requests):
        node = 0
        while request.finished_reason is None:
            token, below = request.say(), int(rows.child[row, node])
            while below != -1 and rows.tokens[row, below] != token:
                below = int(rows.sibling[row, below])
            if below == -1:
                break
            node = below


def step(drafter: TreeDrafter, requests: list[Request]) -> StepCounts:
    verify(requests, drafter.propose(requests))
    return drafter.settle()


def run(drafter: TreeDrafter, *requests: Request) -> int:
    for passes in itertools.count():
        alive = [r for r in requests if r.finished_reason is None]
        if not alive:
            return passes
        step(drafter, alive)


def drafter(settings: SglangSettings = EVERYTHING, **options: Any) -> TreeDrafter:
    return TreeDrafter(settings, SpecForest(), 8, **options)


def test_a_turn_that_was_said_before_takes_fewer_passes_within_its_limit_each_settled_once():
    drafts = drafter()
    assert run(drafts, Request("a")) > 2 * run(drafts, Request("b"))
    assert drafts.forest.finished([STATE]) == [2]
    request = Request("b", params(4))
    outcome = step(drafts, [request])
    assert outcome.drafted[0] <= 2
    assert len(request.output_ids) == 4
    step(drafts, [Request("a")])
    with pytest.raises(RuntimeError, match="once after propose"):
        drafts.settle()


def test_an_unfinished_sibling_drafts_already():
    drafts, ahead = drafter(), Request("a")
    for _ in range(5):
        step(drafts, [ahead])
    assert ahead.finished_reason is None
    assert step(drafts, [ahead, Request("b")]).accepted[1] >= 3


def test_an_aborted_turn_drafts_nobody_though_it_was_swept_up_later():
    drafts, request, other = drafter(), Request("a"), Request("b", speech=[20, 21, 22])
    step(drafts, [request, other])
    request.finish("abort")
    step(drafts, [other])
    assert drafts.forest.stats().live == 1
    assert drafts.forest.finished([STATE]) == [0]


def test_a_retracted_request_goes_on_where_it_was():
    drafts, request, other = drafter(), Request("a"), Request("b")
    step(drafts, [request, other])
    step(drafts, [other])
    run(drafts, request, other)
    assert drafts.forest.stats().tokens == 20


def test_a_batch_that_is_retracted_whole_is_drafted_from_the_token_behind_its_prompt():
    drafts = drafter()
    run(drafts, Request("a", params(12)))
    request = Request("b", params(20))
    drafts.propose([request])
    request.say()
    drafts.settle()
    drafts.prompts([request])
    request.say()
    rows = drafts.propose([request])
    assert rows.tokens[0, rows.child[0, 0]] == SPEECH[3]


@pytest.mark.parametrize(("custom", "said"), [(None, ""), ({KEY: "x"}, "so its prompt is used as the key")])
def test_a_request_without_a_state_that_can_be_read_is_keyed_by_its_prompt(caplog, custom, said):
    drafts = drafter()
    run(drafts, Request("a", SimpleNamespace(max_new_tokens=10, custom_params=custom)))
    assert drafts.forest.finished([DialogueState.from_tokens([1, 2, 3])]) == [1]
    assert said in caplog.text


def test_a_callers_draft_is_verified_first_and_teaches_nothing_about_the_stores_drafts():
    assert run(drafter(), Request("a", params(10, **{DRAFT: SPEECH}))) == 2
    assert run(drafter(), Request("a")) > 2
    drafts = drafter(SglangSettings(adaptive=False, min_probability=1.0))
    run(drafts, Request("a", params(10, **{DRAFT: SPEECH})))
    assert (drafts.chooser.observed, drafts.counts.accepted) == (0, 7)


def test_two_hundred_requests_join_and_leave():
    rng, drafts = np.random.default_rng(0), drafter(SglangSettings())
    waiting = [
        Request(f"r{i}", params(int(rng.integers(2, 12))), speech=rng.permutation(SPEECH).tolist()) for i in range(200)
    ]
    wanted = sum(r.sampling_params.max_new_tokens for r in waiting)
    running: list[Request] = []
    while waiting or running:
        while waiting and len(running) < 16:
            running.append(waiting.pop())
        step(drafts, running)
        running = [r for r in running if r.finished_reason is None]
    stats = drafts.forest.stats()
    assert (stats.live, stats.committed) == (0, wanted)
    assert drafts.counts.rows < wanted - 200


def test_turns_that_were_aborted_unseen_end_when_all_rest() -> None:
    drafts = drafter()
    run(drafts, Request("a"))
    left = Request("b")
    step(drafts, [left])
    assert drafts.forest.stats().live == 1
    drafts.idle()
    stats = drafts.forest.stats()
    assert (stats.live, stats.rollouts) == (0, 1)


@pytest.mark.parametrize(
    ("device", "settings", "width"),
    [("cpu", {}, 8), ("cuda", {}, 4), ("cuda", {"max_step_tokens": 3000}, 8), ("cpu", {"max_step_tokens": 400}, 2)],
)
@pytest.mark.parametrize("turn_drafted", [False, True])
def test_a_pass_is_as_wide_as_its_bound_allows(device, settings, width, turn_drafted):
    """300 requests at width 8 are 2,400 tokens, above an accelerator's limit of 2,048."""
    drafts = drafter(SglangSettings(adaptive=False, min_probability=0.01, **settings), device=device)
    if not turn_drafted:
        for n in range(8):
            run(drafts, Request(f"a{n}"))
    custom = {DRAFT: SPEECH} if turn_drafted else {}
    requests = [Request(f"b{n}", params(**custom)) for n in range(300)]
    assert drafts.propose(requests).width == width
