from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from turntree.agents.engines.sglang.passes import PassesByWidth


class Runner:
    """As much of SGLang's model runner as is used: its attention is the width that it was made for."""

    def __init__(self, device: str, *, graphs: bool) -> None:
        self.device = device
        self.server_args = SimpleNamespace(speculative_num_draft_tokens=8, speculative_num_steps=7)
        self.attn_backend: Any = "attention of 8"
        self.graph_runner: Any = "graphs of 8" if graphs else None
        self.init_new_workspace = False
        self.shared_workspaces = 0

    def _get_attention_backend(self, init_new_workspace: bool = False) -> str:
        self.shared_workspaces += not init_new_workspace
        self.init_new_workspace = init_new_workspace
        return f"attention of {self.server_args.speculative_num_draft_tokens}"


def capture(runner: Runner, *, attn_backend: str, speculative_num_steps: int, speculative_num_draft_tokens: int) -> str:
    assert attn_backend == f"attention of {speculative_num_draft_tokens}"
    assert speculative_num_steps == speculative_num_draft_tokens - 1
    return f"graphs of {speculative_num_draft_tokens}"


def test_each_width_has_attention_and_graphs_of_its_own():
    runner = Runner("cuda", graphs=True)
    passes = PassesByWidth(runner, (1, 4, 8), graphs=capture)
    for width in (4, 1, 8, 1):
        passes.use(width)
        assert (runner.attn_backend, runner.graph_runner) == (f"attention of {width}", f"graphs of {width}")
    assert runner.shared_workspaces == 0


def test_the_server_keeps_its_own_width():
    runner = Runner("cuda", graphs=True)
    PassesByWidth(runner, (1, 8), graphs=capture)
    assert vars(runner.server_args) == {"speculative_num_draft_tokens": 8, "speculative_num_steps": 7}
    assert (runner.attn_backend, runner.init_new_workspace) == ("attention of 8", False)


def test_a_failed_capture_leaves_the_server_as_it_was():
    runner = Runner("cuda", graphs=True)

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        PassesByWidth(runner, (1, 8), graphs=fail)
    assert runner.server_args.speculative_num_draft_tokens == 8


def test_without_graphs_only_the_attention_changes():
    runner = Runner("cuda", graphs=False)
    PassesByWidth(runner, (2, 8), graphs=capture).use(2)
    assert (runner.attn_backend, runner.graph_runner) == ("attention of 2", None)


def test_on_the_cpu_one_attention_takes_any_width():
    runner = Runner("cpu", graphs=False)
    PassesByWidth(runner, (1, 8), graphs=capture).use(1)
    assert runner.attn_backend == "attention of 8"
