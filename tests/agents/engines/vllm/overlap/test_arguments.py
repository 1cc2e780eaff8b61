from types import SimpleNamespace
from typing import Any

import pytest

from turntree.agents.engines.vllm import compat
from turntree.agents.engines.vllm.config import SCHEDULER, is_ours, on_accelerator
from turntree.agents.engines.vllm.settings import DRAFTER, SECTION, speculative_config

OURS = {"speculative_config": speculative_config(6)}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(compat, "version", lambda _: "0.24.0")
    return lambda found: monkeypatch.setattr(compat, "version", lambda _: found)


@pytest.mark.parametrize("version", ["0.24.0", "0.28.1+cpu"])
def test_on_one_rank_drafts_go_beside_asynchronous_scheduling(installed: Any, version: str) -> None:
    installed(version)
    given = on_accelerator(OURS, rows=8, ranks=1)
    assert given["scheduler_cls"] == SCHEDULER
    assert given["speculative_config"]["method"] == "ngram_gpu"
    assert given["speculative_config"]["num_speculative_tokens"] == 6
    assert max(given["compilation_config"]["cudagraph_capture_sizes"]) == 8 * 7
    config = {name: given[name] for name in ("speculative_config", "additional_config")}
    config["speculative_config"] = SimpleNamespace(**config["speculative_config"])
    assert is_ours(SimpleNamespace(**config))
    assert {"speculative_config": speculative_config(6)} == OURS


def test_what_the_user_gave_is_kept() -> None:
    user = OURS | {
        "compilation_config": {"level": 0},
        "max_num_batched_tokens": 512,
        "additional_config": {"other": 1, SECTION: {"adaptive": False}},
        "max_num_seqs": 4,
    }
    given = on_accelerator(user, rows=8, ranks=1)
    changed = {"scheduler_cls", "speculative_config", "additional_config"}
    assert {name: value for name, value in given.items() if name not in changed} == {
        name: value for name, value in user.items() if name not in changed
    }
    assert given["additional_config"]["other"] == 1
    assert given["additional_config"][SECTION]["adaptive"] is False


@pytest.mark.parametrize("speculative", [None, {"method": "ngram"}, {"method": "eagle", "model": "other"}])
@pytest.mark.parametrize("ranks", [1, 2])
def test_other_drafters_and_none_are_left_alone(speculative: Any, ranks: int) -> None:
    user = {"speculative_config": speculative, "max_num_seqs": 4}
    assert on_accelerator(user, rows=8, ranks=ranks) == user


@pytest.mark.parametrize(
    ("version", "ranks", "more"),
    [
        ("0.24.0", 2, {}),
        ("0.32.0", 1, {}),
        ("0.2.4", 1, {}),
        ("0.24.0", 1, {"async_scheduling": False}),
        ("0.24.0", 1, {"scheduler_cls": "theirs"}),
    ],
    ids=["several ranks", "an unknown version", "another one", "no asynchronous scheduling", "another scheduler"],
)
def test_else_it_drafts_synchronously(installed: Any, version: str, ranks: int, more: dict[str, Any]) -> None:
    installed(version)
    given = on_accelerator(OURS | more, rows=8, ranks=ranks)
    assert given["speculative_config"] == {"method": "custom_class", "model": DRAFTER, "num_speculative_tokens": 6}
    assert given.get("scheduler_cls") == more.get("scheduler_cls")


def test_without_vllm_it_drafts_synchronously(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: str) -> str:
        raise compat.PackageNotFoundError

    monkeypatch.setattr(compat, "version", gone)
    assert on_accelerator(OURS, rows=8, ranks=1)["speculative_config"] == OURS["speculative_config"]


@pytest.mark.parametrize(
    ("speculative", "additional"),
    [
        (None, {SECTION: {}}),
        (SimpleNamespace(method="custom_class"), {SECTION: {}}),
        (SimpleNamespace(method="ngram_gpu"), {}),
        (SimpleNamespace(method="ngram_gpu"), None),
    ],
)
def test_a_configuration_of_vllms_own_drafter_is_not_ours(speculative: Any, additional: Any) -> None:
    assert not is_ours(SimpleNamespace(speculative_config=speculative, additional_config=additional))
