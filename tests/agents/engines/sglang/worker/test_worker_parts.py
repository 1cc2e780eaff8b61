from types import SimpleNamespace
from typing import Any

import pytest
from upstream import upstream

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module", autouse=True)
def sglang() -> Any:
    return pytest.importorskip("sglang", reason="needs SGLang; see make test-sglang")


def test_the_algorithm_answers_as_ngram_what_sglang_forgot_for_plugins() -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from turntree.agents.engines.sglang.worker.algorithm import TurntreeAlgorithm

    algorithm = TurntreeAlgorithm("TURNTREE", lambda _: object)
    asked = [name for name in dir(SpeculativeAlgorithm) if name.startswith(("is_", "supports_"))]
    for name in asked:
        if name != "supports_spec_v2":
            assert getattr(algorithm, name)() == getattr(SpeculativeAlgorithm.NGRAM, name)(), name
    assert "is_frozen_kv_mtp" not in vars(type(algorithm).__mro__[1])


def test_ngram_keeps_its_name_and_changes_its_worker_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from turntree.agents.engines.sglang.worker import plugin

    other, ngram = (SimpleNamespace(is_ngram=lambda answer=answer: answer) for answer in (False, True))
    arguments = SimpleNamespace(speculative_algorithm="NGRAM")
    assert plugin.create_worker(lambda *_: "theirs", other, arguments) == "theirs"
    assert plugin.create_worker(lambda *_: "theirs", ngram, arguments).__name__.startswith("Turntree")
    monkeypatch.setenv("TURNTREE_SGLANG", "{}")
    assert not plugin.is_ours(arguments)
    monkeypatch.setenv("TURNTREE_SGLANG", '{"replace_ngram": true}')
    assert plugin.is_ours(arguments)
    assert plugin.is_ours(SimpleNamespace(speculative_algorithm="turntree"))
    assert not plugin.is_ours(SimpleNamespace(speculative_algorithm=None))


@pytest.mark.parametrize(("algorithm", "whether"), [("TURNTREE", True), ("EAGLE", False), (None, True)])
def test_a_server_reports_whether_it_reverifies_drafts(algorithm: str | None, whether: bool) -> None:
    from turntree.agents.engines.sglang.worker import plugin

    assert plugin.reverifies(SimpleNamespace(speculative_algorithm=algorithm)) is whether


def test_upstream_still_leaves_a_padded_batchs_mask_and_keeps_one_graph_runners_adapters() -> None:
    replay = upstream("sglang/srt/model_executor/cuda_graph_runner.py").partition("def replay_prepare")[2]
    assert replay.partition("def replay(")[0].count("custom_mask") == 2, "of idle batches alone"
    given = upstream("sglang/srt/speculative/ngram_info.py").partition("def generate_attn_arg_prefill")[2]
    assert given.partition("    def ")[0].count("custom_mask") == 1, "as it is in the verify input"
    assert "def init_cuda_graph_batch_info" in upstream("sglang/srt/lora/lora_manager.py")
    assert "self.cuda_graph_batch_info = LoRABatchInfo(" in upstream("sglang/srt/lora/backend/chunked_backend.py")


def test_upstream_lays_out_its_buffers_as_the_estimate_of_memory_counts_them() -> None:
    pytest.importorskip("verl", reason="the estimate is of a training")
    from sglang.srt.server_args import ServerArgs

    from turntree.agents.verl.memory.rollout import captured_sizes

    attention = upstream("sglang/srt/layers/attention/flashinfer_backend.py")
    room = attention.partition("def init_cuda_graph_state")[2].partition("def init_forward")[0]
    assert room.count("max_num_tokens * self.max_context_len") == 2
    assert "SGLANG_FLASHINFER_WORKSPACE_SIZE.set(512 * 1024 * 1024)" in attention
    for most in (1, 4, 100, 256, 300, 512, 520):
        asked = SimpleNamespace(disable_cuda_graph_padding=False, speculative_algorithm=None, cuda_graph_max_bs=most)
        assert captured_sizes(most) == len(ServerArgs._generate_cuda_graph_batch_sizes(asked)), most
