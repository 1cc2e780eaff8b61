"""Parts of the worker and the plugin that need SGLang, and no engine."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from draft_trees import random_trees

from turntree.agents.engines.sglang.rows import tree_rows

pytestmark = pytest.mark.sglang

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def sglang():
    return pytest.importorskip("sglang", reason="needs SGLang; see make test-sglang")


@pytest.mark.parametrize("seed", range(5))
def test_each_node_sees_the_context_and_its_own_path(seed):
    from turntree.agents.engines.sglang.worker import TurntreeWorker

    lengths = np.array([3, 0, 7, 1])
    rows = tree_rows(random_trees(np.random.default_rng(seed), 4, 5), np.zeros(4, np.int64), 6)
    mask = TurntreeWorker._full_mask(SimpleNamespace(device="cpu"), rows, lengths)
    wanted = [
        np.concatenate([np.ones((6, length), bool), rows.seen[row]], 1).ravel() for row, length in enumerate(lengths)
    ]
    assert mask.tolist() == np.concatenate(wanted).tolist()


def test_positions_go_on_from_the_context():
    from turntree.agents.engines.sglang.worker import TurntreeWorker

    rows = tree_rows(random_trees(np.random.default_rng(1), 3, 5), np.arange(3), 6)
    made = TurntreeWorker._tensors(SimpleNamespace(device="cpu"), rows, torch.tensor([4, 0, 9]))
    assert made[0].view(3, 6)[:, 0].tolist() == [0, 1, 2]
    assert (made[1].view(3, 6) - torch.tensor([[4], [0], [9]])).tolist() == rows.depths.tolist()
    assert made[2].tolist() == [[*range(6)], [*range(6, 12)], [*range(12, 18)]]


def test_the_algorithm_answers_as_ngram_what_sglang_forgot_for_plugins():
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from turntree.agents.engines.sglang import compat
    from turntree.agents.engines.sglang.algorithm import TurntreeAlgorithm

    algorithm = TurntreeAlgorithm("TURNTREE", lambda _: object)
    asked = [name for name in dir(SpeculativeAlgorithm) if name.startswith(("is_", "supports_"))]
    for name in asked:
        if name != "supports_spec_v2":
            assert getattr(algorithm, name)() == getattr(SpeculativeAlgorithm.NGRAM, name)(), name
    if not compat.is_v2():
        assert "is_frozen_kv_mtp" not in vars(type(algorithm).__mro__[1])


def test_ngram_keeps_its_name_and_changes_its_worker_only_when_told(monkeypatch):
    from turntree.agents.engines.sglang import plugin

    class Other:
        def is_ngram(self):
            return False

    class Ngram:
        def is_ngram(self):
            return True

    arguments = SimpleNamespace(speculative_algorithm="NGRAM")
    assert plugin._create_worker(lambda *_: "theirs", Other(), arguments) == "theirs"
    assert plugin._create_worker(lambda *_: "theirs", Ngram(), arguments).__name__.startswith("Turntree")
    monkeypatch.setenv("TURNTREE_SGLANG", "{}")
    assert not plugin.is_ours(arguments)
    monkeypatch.setenv("TURNTREE_SGLANG", '{"replace_ngram": true}')
    assert plugin.is_ours(arguments)
    assert plugin.is_ours(SimpleNamespace(speculative_algorithm="turntree"))
    assert not plugin.is_ours(SimpleNamespace(speculative_algorithm=None))
