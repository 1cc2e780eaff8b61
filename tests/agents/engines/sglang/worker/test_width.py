from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from draft_trees import draft_trees

from turntree.agents.engines.served.width import WidthChooser
from turntree.agents.engines.sglang.settings import SglangSettings, graph_sizes
from turntree.agents.engines.sglang.worker.plugin import thin_graphs
from turntree.agents.engines.sglang.worker.refusals import RefusedSettings
from turntree.agents.engines.sglang.worker.width_backends import BackendsByWidth
from turntree.agents.verl.memory.rollout import captured_sizes

CHAINS = [[(token, token - 1) for token in range(7)]] * 4
WIDTHS = (1, 2, 4, 8)


def run(
    seconds_of, accepted: float, steps: int = 300, *, best: float = 0.9, chooser: WidthChooser | None = None
) -> tuple[WidthChooser, list[int]]:
    chooser, chosen, rng = chooser or WidthChooser(WIDTHS), [], np.random.default_rng(0)
    offered = draft_trees(*CHAINS, last_probability=best - 0.01)
    for _ in range(steps):
        width = chooser.choose(offered)
        nodes, seconds = 4 * (width - 1), seconds_of(4 * width)
        hits = rng.random(nodes) < accepted
        chooser.observe(rows=4, width=width, estimates=np.full(nodes, best), accepted=hits, seconds=seconds)
        chosen.append(width)
    return chooser, chosen


def test_a_width_beyond_what_is_offered_is_not_chosen():
    assert WidthChooser(WIDTHS).choose(draft_trees([], [])) == 1
    chooser = WidthChooser(WIDTHS)
    assert all(chooser.choose(draft_trees([(5, -1)], [(6, -1)])) <= 2 for _ in range(50))


@pytest.mark.parametrize(
    ("seconds_of", "accepted", "best", "width", "often"),
    [
        (lambda tokens: 0.01, 1, 0.9, 8, 95),
        (lambda tokens: 0.01 + 0.001 * tokens, 0, 0.9, 1, 85),
        (lambda tokens: 0.001 * tokens, 0.2, 0.5, 1, 85),
    ],
    ids=["accepted on a flat machine", "never accepted", "accepted now and then on a busy machine"],
)
def test_drafts_that_gain_make_trees_wide_and_those_that_lose_are_given_up(seconds_of, accepted, best, width, often):
    _, chosen = run(seconds_of, accepted, steps=400, best=best)
    assert chosen[-100:].count(width) > often


def lost(steps: int = 1500) -> float:
    """Time of plain passes for as many tokens, over the time taken, when few drafts are accepted.

    Batches of four and of one request alternate: a wide pass of one request has as many tokens as a plain pass of four.
    """
    chooser, rng, took, plain = WidthChooser(WIDTHS), np.random.default_rng(0), 0.0, 0.0
    for step in range(steps):
        rows = 4 if step // 60 % 2 else 1
        width = chooser.choose(draft_trees(*CHAINS[:rows], last_probability=0.8))
        hits = rng.random(rows * (width - 1)) < 0.03
        seconds = 0.01 * (1.5 if width > 1 else 1.0) * float(np.exp(0.05 * rng.standard_normal()))
        chooser.observe(rows=rows, width=width, estimates=np.full(len(hits), 0.8), accepted=hits, seconds=seconds)
        took, plain = took + seconds, plain + 0.01 * (rows + hits.sum()) / rows
    return plain / took


def test_what_wide_trees_lose_against_plain_steps_is_bounded():
    assert lost() >= 0.97


def test_without_an_account_it_is_not(monkeypatch):
    """Control of the test above."""
    monkeypatch.setattr("turntree.spec_tree.budget.step_account.LOSS_SHARE", 1e9)
    assert lost() < 0.97


def test_a_policy_that_begins_to_agree_is_noticed_and_two_choosers_fed_alike_choose_alike():
    chooser, _ = run(lambda tokens: 0.01 + 0.0001 * tokens, accepted=0)
    _, chosen = run(lambda tokens: 0.01 + 0.0001 * tokens, accepted=1, steps=600, chooser=chooser)
    assert chosen[-50:].count(8) > 40
    _, here = run(lambda tokens: 1 + tokens / 256, accepted=1)
    _, there = run(lambda tokens: 1 + tokens / 256, accepted=1)
    _, slow = run(lambda tokens: 0.01 * tokens**2, accepted=1)
    assert here == there
    assert here != slow


class Runner:
    """The parts of SGLang's model runner that are used; its attention is the width that it was created for."""

    def __init__(self, device: str, *, graphs: bool) -> None:
        self.device = device
        self.server_args = SimpleNamespace(speculative_num_draft_tokens=8, speculative_num_steps=7, enable_lora=False)
        self.attn_backend: Any = "attention of 8"
        self.graph_runner: Any = "graphs of 8" if graphs else None
        self.init_new_workspace = False
        self.new_workspaces = 0

    def _get_attention_backend(self, init_new_workspace: bool = False) -> str:
        self.new_workspaces += init_new_workspace
        self.init_new_workspace = init_new_workspace
        return f"attention of {self.server_args.speculative_num_draft_tokens}"


def capture(runner: Runner, *, attn_backend: str, speculative_num_steps: int, speculative_num_draft_tokens: int) -> str:
    assert attn_backend == f"attention of {speculative_num_draft_tokens}"
    assert speculative_num_steps == speculative_num_draft_tokens - 1
    return f"graphs of {speculative_num_draft_tokens}"


def test_each_width_has_attention_and_graphs_of_its_own():
    runner = Runner("cuda", graphs=True)
    passes = BackendsByWidth(runner, (1, 4, 8), graphs=capture)
    for width in (4, 1, 8, 1):
        passes.use(width)
        assert (runner.attn_backend, runner.graph_runner) == (f"attention of {width}", f"graphs of {width}")
    assert runner.new_workspaces == 0, "512 MiB each, of which one pass at a time needs one"


def test_the_server_keeps_its_own_width_also_where_a_capture_fails():
    runner = Runner("cuda", graphs=True)
    BackendsByWidth(runner, (1, 8), graphs=capture)
    unchanged = {"speculative_num_draft_tokens": 8, "speculative_num_steps": 7, "enable_lora": False}
    assert vars(runner.server_args) == unchanged
    assert (runner.attn_backend, runner.init_new_workspace) == ("attention of 8", False)

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        BackendsByWidth(runner, (1, 8), graphs=fail)
    assert runner.server_args.speculative_num_draft_tokens == 8


@pytest.mark.parametrize(("device", "attention"), [("cuda", "attention of 2"), ("cpu", "attention of 8")])
def test_without_graphs_only_the_attention_changes_and_on_the_cpu_one_takes_any_width(device, attention):
    runner = Runner(device, graphs=False)
    BackendsByWidth(runner, (2, 8), graphs=capture).use(2)
    assert (runner.attn_backend, runner.graph_runner) == (attention, None)


def test_adapters_with_graphs_of_several_widths_are_refused():
    runner = Runner("cuda", graphs=True)
    runner.server_args.enable_lora = True
    with pytest.raises(RefusedSettings, match=r"enable_lora needs one width .* got 1, 8: .* disable_cuda_graph"):
        BackendsByWidth(runner, (1, 8), graphs=capture)
    assert runner.attn_backend == "attention of 8"


@pytest.mark.parametrize(
    ("widths", "device", "graphs"), [((8,), "cuda", True), ((1, 8), "cuda", False), ((1, 8), "cpu", False)]
)
def test_adapters_go_with_one_width_or_without_graphs(widths, device, graphs):
    runner = Runner(device, graphs=graphs)
    runner.server_args.enable_lora = True
    BackendsByWidth(runner, widths, graphs=capture)


def test_a_batch_is_padded_by_graphs_alone():
    runner = Runner("cuda", graphs=True)
    runner.graph_runner = SimpleNamespace(max_bs=48)
    assert BackendsByWidth(runner, (8,)).most_rows == 48
    assert BackendsByWidth(Runner("cuda", graphs=False), (8,)).most_rows == 0
    assert BackendsByWidth(Runner("cpu", graphs=False), (8,)).most_rows == 0


@pytest.mark.parametrize("most", [128, 256, 512])
def test_two_widths_take_at_most_1_3_times_as_many_captures_as_an_engine_without_drafts(most):
    runner = Runner("cuda", graphs=True)
    runner.server_args = server(most)
    thin_graphs(runner.server_args)
    captured = list(runner.server_args.cuda_graph_bs)  # SGLang's own, of the widest
    widths = SglangSettings().widths_within(9, device="cuda")
    BackendsByWidth(runner, widths, graphs=lambda made, **_: captured.extend(made.server_args.cuda_graph_bs))
    assert len(captured) <= 1.3 * captured_sizes(most)
    assert max(captured) == most
    many = server(most)._generate_cuda_graph_batch_sizes()
    assert 2 * len(many) > 1.3 * captured_sizes(most), "the control: SGLang's own sizes with drafts"
    assert all(after <= max(before + 4, 1.5 * before) for before, after in pairwise(graph_sizes(most))), "padding"


@pytest.mark.parametrize("kept", [{"cuda_graph_bs": [3, 5]}, {"device": "cpu"}, {"disable_cuda_graph_padding": True}])
def test_batch_sizes_that_were_given_or_are_not_padded_are_captured_as_they_are(kept):
    arguments = server(64)
    vars(arguments).update(kept)
    before = list(arguments.cuda_graph_bs)
    thin_graphs(arguments)
    assert arguments.cuda_graph_bs == before


def server(most: int) -> SimpleNamespace:
    sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, most + 1, 16)]
    sizes = [size for size in sizes if size <= most]
    return SimpleNamespace(
        cuda_graph_bs=sizes, cuda_graph_max_bs=most, device="cuda", disable_cuda_graph_padding=False, enable_lora=False,
        speculative_num_draft_tokens=9, speculative_num_steps=8, _generate_cuda_graph_batch_sizes=lambda: list(sizes),
    )  # fmt: skip
