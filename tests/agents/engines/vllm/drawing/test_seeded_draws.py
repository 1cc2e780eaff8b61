import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='the engines draw with PyTorch: pip install -e ".[local]"')

from sampling_runner import SamplingRunner, request  # noqa: E402

from turntree.agents.engines.vllm.drawing import seeded_draws  # noqa: E402
from turntree.spec_tree.rules.noise import exponential  # noqa: E402

VOCABULARY, UNSEEDED = 11, 10
TABLE = torch.from_numpy(np.random.default_rng(3).normal(size=(64, VOCABULARY)).astype(np.float32))


class Inner(torch.nn.Module):
    def forward(self, logits: Any, generators: Any, k: Any, p: Any) -> tuple[Any, None]:
        return torch.full((len(logits),), UNSEEDED), None


def runner_of(*requests: Any) -> SamplingRunner:
    return SamplingRunner(*requests, inner=Inner())


@pytest.fixture(autouse=True)
def upstream(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("vllm.v1.sample.rejection_sampler")

    def rejection_sample(drafts: Any, lengths: list[int], longest: int, *rest: Any) -> Any:
        tokens = torch.full((len(lengths), longest + 1), -1)
        tokens[:, 0] = UNSEEDED
        return tokens

    module.rejection_sample = rejection_sample  # type: ignore[attr-defined]
    module.PLACEHOLDER_TOKEN_ID = -1  # type: ignore[attr-defined]
    for package in ("vllm", "vllm.v1", "vllm.v1.sample"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def winner(seed: int, position: int) -> int:
    p = TABLE[position].double().softmax(-1).numpy()
    clocks = exponential(np.array([seed], np.uint64), np.array([position]), np.arange(VOCABULARY))
    return int((clocks / p).argmin())


def drawn(runner: SamplingRunner, positions: list[int]) -> list[int]:
    runner.prepare()
    tokens, _ = runner.sampler.topk_topp_sampler(TABLE[positions], {}, None, None)
    return list(tokens.tolist())


def verified(runner: SamplingRunner, module: Any, drafts: list[list[int]]) -> list[list[int]]:
    lengths = [len(draft) for draft in drafts]
    begins = [len(runner.requests[name].output_token_ids) for name in runner.input_batch.req_ids]
    nodes = [begin + step for begin, length in zip(begins, lengths, strict=True) for step in range(length)]

    def forward(metadata: Any) -> Any:
        ends = [begin + length for begin, length in zip(begins, lengths, strict=True)]
        bonus = runner.sampler.topk_topp_sampler(TABLE[ends], {}, None, None)[0][:, None]
        flat = torch.tensor([token for draft in drafts for token in draft], dtype=torch.int64)
        return module.rejection_sample(flat, lengths, max(lengths), None, None, TABLE[nodes], bonus)

    runner.rejection_sampler.forward = forward
    seeded_draws.install(runner)
    tokens = runner.rejection_sampler(runner.prepare(drafts))
    return [[token for token in row if token != -1] for row in tokens.tolist()]


def test_a_seeded_row_is_drawn_by_its_noise_and_greedy_rows_and_dry_runs_by_vllm() -> None:
    runner = runner_of(request(5, said=3), request(None), request(2**64 - 1))
    seeded_draws.install(runner)
    assert drawn(runner, [3, 9, 0]) == [winner(5, 3), UNSEEDED, winner(2**64 - 1, 0)]
    runner = runner_of(request(5, temperature=0.0))
    seeded_draws.install(runner)
    assert drawn(runner, [0, 1, 2]) == [UNSEEDED] * 3


def test_other_seeds_and_positions_say_other_things() -> None:
    """Control: the noise depends on both."""
    assert len({winner(seed, 0) for seed in range(20)}) > 3
    assert [winner(5, n) for n in range(20)] != [winner(6, n) for n in range(20)]


@pytest.mark.parametrize("said", [0, 4])
def test_a_drafted_token_stays_exactly_if_the_seed_says_it(upstream: Any, said: int) -> None:
    turn = [winner(5, said + n) for n in range(4)]
    wrong = [*turn[:2], (turn[2] + 1) % VOCABULARY]
    assert verified(runner_of(request(5, said=said)), upstream, [turn[:3]]) == [turn]
    assert verified(runner_of(request(5, said=said)), upstream, [wrong]) == [turn[:3]]


def test_nothing_after_a_mismatch_is_said_though_it_was_drafted_rightly(upstream: Any) -> None:
    turn = [winner(5, position) for position in range(4)]
    drafted = [turn[0], (turn[1] + 1) % VOCABULARY, turn[2]]
    assert verified(runner_of(request(5), request(5)), upstream, [drafted, turn[:3]]) == [turn[:2], turn]


def test_given_tokens_are_positions_of_the_turn() -> None:
    runner = runner_of(request(5, said=2, given=4), request(5, said=2))
    seeded_draws.install(runner)
    assert drawn(runner, [6, 2]) == [winner(5, 6), winner(5, 2)]


def test_each_row_of_a_batch_is_verified_for_itself(upstream: Any) -> None:
    runner = runner_of(request(5), request(None), request(6, said=2), request(7))
    five, six = [winner(5, n) for n in range(3)], [winner(6, 2 + n) for n in range(2)]
    emitted = verified(runner, upstream, [five[:2], [1, 2], [six[0]], []])
    assert emitted == [five, [UNSEEDED], six, [winner(7, 0)]]


def test_positions_are_the_devices_where_the_host_counts_tokens_that_are_not_sampled_yet(upstream: Any) -> None:
    runner = runner_of(request(5, said=2), request(6, said=1))
    seeded_draws.install(runner)
    runner.prepare()
    for asked in runner.requests.values():
        asked.output_token_ids += [-1] * 3
    tokens, _ = runner.sampler.topk_topp_sampler(TABLE[[2, 1]], {}, None, None)
    assert tokens.tolist() == [winner(5, 2), winner(6, 1)]


def test_installing_twice_wraps_nothing_twice(upstream: Any, caplog: pytest.LogCaptureFixture) -> None:
    runner = runner_of(request(5))
    assert not seeded_draws.installed(runner)
    seeded_draws.install(runner)
    assert seeded_draws.installed(runner)
    before = runner.sampler.topk_topp_sampler, upstream.rejection_sample
    seeded_draws.install(runner)
    assert (runner.sampler.topk_topp_sampler, upstream.rejection_sample) == before
    runner = SimpleNamespace(sampler=None)
    seeded_draws.install(runner)
    assert not seeded_draws.installed(runner)
    assert "topk_topp_sampler" in caplog.text
