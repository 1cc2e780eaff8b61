from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from turntree.agents.engines.local.stats import EngineStats
from turntree.agents.episodes.failures import FailureKind
from turntree.agents.resuming.interrupted_turns import ResumeCounts
from turntree.agents.turn_drafts.precomputed import RunAheadStats
from turntree.agents.turn_drafts.stored import ReuseStats
from turntree.agents.verl.records.metrics import (
    CALL_COUNTS,
    EPISODE,
    METRICS,
    PlayedRow,
    engine_metrics,
    episode_metrics,
)
from turntree.spec_tree.sharing.turn_sharing import SwapCounts

DOCS = Path(__file__).resolve().parents[4] / "docs" / "metrics.md"


def row(levels: tuple[int, ...] = (1, 0, 3), **extra: Any) -> PlayedRow:
    info = {"turns": 3, "tool_calls": 2, "truncated": 0.0, "attempts": 1, "failure": 0.0, "ungraded": 0.0}
    info |= {"tool_calls_unparsed": 1, "turns_cut": 1}
    counts = {"spec_num_draft_tokens": 4, "spec_num_accepted_tokens": 1, "spec_num_verify_steps": 1}
    info |= extra.pop("info", {})
    group = extra.pop("group", "")
    return PlayedRow(extra={EPISODE: info, **counts, **extra}, levels=levels, group=group)


def counters() -> dict[str, float]:
    stats = EngineStats(
        seconds=2.0, draft_seconds=0.5, draft_idle_seconds=0.2, prompt_tokens=10, cached_tokens=4, forward_passes=7
    )
    named = {"reuse": ReuseStats(turns=1), "run_ahead": RunAheadStats(promoted=3), "sharing": SwapCounts(received=2)}
    values = stats.to_dict()
    for prefix, counted in named.items():
        values |= {f"{prefix}_{name}": value for name, value in asdict(counted).items()}
    values |= {"imported_turns": 5, "imported_evicted": 1}
    groups = ("exact", "trained_turns")
    return values | {f"exactness/{group}_{kind}_z": 1.0 for group in groups for kind in ("acceptance", "entropy")}


def test_all_that_is_logged_is_in_the_table_and_all_of_the_table_is_logged() -> None:
    lost = {"program_error": 1.0, **{f"failed_attempts_{kind}": 1 for kind in FailureKind}}
    versions = {"min_global_steps": 1, "max_global_steps": 2, "reward_extra_info": {"score": 1.0}}
    interrupted = [
        row(
            info={f"resume_{name}": count for name, count in asdict(ResumeCounts(interruptions=n, offered=4)).items()},
            **versions,
        )
        for n in range(2)
    ]
    called = {f"tool_calls_ahead_{name}": 1 for name in CALL_COUNTS}
    logged = episode_metrics([row(info=lost | called), *interrupted]) | engine_metrics([counters()])
    assert set(logged) == {metric.name for metric in METRICS}


def test_what_has_no_data_is_left_out_and_the_documentation_has_the_table() -> None:
    plain = row((1, 1), spec_num_draft_tokens=0, spec_num_accepted_tokens=0, spec_num_verify_steps=2)
    logged = episode_metrics([plain])
    assert "turntree/acceptance" not in logged
    assert logged["turntree/tokens_per_forward_pass"] == 1.0
    assert not any("failed_attempts" in name or "program" in name for name in logged)
    assert episode_metrics([]) == {}
    assert engine_metrics([]) == {}
    rows = [f"| `{metric.name}` | {metric.meaning} |" for metric in METRICS]
    assert "\n".join(["| name | meaning |", "|---|---|", *rows]) in DOCS.read_text(encoding="utf-8")
    assert DOCS.read_text(encoding="utf-8").count("| `") == len(METRICS)


def test_the_figures_of_episodes_are_rates() -> None:
    logged = episode_metrics([row(), row((2,), info={"turns": 1, "tool_calls": 0, "truncated": 1.0, "attempts": 2})])
    assert (logged["turntree/episodes"], logged["turntree/turns"]) == (2, 2.0)
    assert (logged["turntree/more_than_two_turns"], logged["turntree/tool_calls_per_turn"]) == (0.5, 0.5)
    assert logged["turntree/with_tool_calls"] == logged["turntree/truncated"] == logged["turntree/retried"] == 0.5
    assert logged["turntree/tokens"] == 3
    assert logged["turntree/level_a"] == logged["turntree/level_b"] == pytest.approx(1 / 3)
    assert (logged["turntree/level_d"], logged["turntree/acceptance"]) == (0.0, 0.25)
    reverified = [row(reward_extra_info={"score": 0.5, "ungraded": verdict}) for verdict in (0.0, 1.0)]
    logged = episode_metrics([*reverified, row(reward_extra_info={}), row(info={"ungraded": 1.0})])
    assert (logged["turntree/ungraded"], logged["turntree/turns"]) == (0.5, 3.0)
    assert (logged["turntree/tool_calls_unparsed"], logged["turntree/turns_cut"]) == (4, pytest.approx(1 / 3))


def test_groups_whose_rewards_are_equal_are_counted_without_their_masked_episodes() -> None:
    def scored(group: str, score: float, **info: Any) -> PlayedRow:
        return row(group=group, reward_extra_info={"score": score, "ungraded": info.pop("ungraded", 0.0)}, info=info)

    equal, mixed = [scored("a", 1.0), scored("a", 1.0)], [scored("b", 0.0), scored("b", 1.0)]
    assert episode_metrics([*equal, *mixed])["turntree/equal_groups"] == 0.5
    assert episode_metrics([*equal, scored("a", 0.0, failure=1.0)])["turntree/equal_groups"] == 1.0
    assert episode_metrics([*equal, scored("a", 0.0, ungraded=1.0)])["turntree/equal_groups"] == 1.0
    assert episode_metrics([*equal, scored("a", 0.0)])["turntree/equal_groups"] == 0.0
    alone = [scored(name, 0.0) for name in "abc"]
    assert episode_metrics(alone)["turntree/equal_groups"] == 1.0
    assert "turntree/equal_groups" not in episode_metrics([row(), row()])


def test_replicas_are_summed_and_their_scores_put_together() -> None:
    logged = engine_metrics([counters(), counters()])
    assert (logged["turntree/forward_passes"], logged["turntree/drafting_time_share"]) == (14, 0.25)
    assert (logged["turntree/draft_idle_share"], logged["turntree/cached_prompt"]) == (0.1, 0.4)
    assert logged["exactness/exact_entropy_z"] == pytest.approx(2**0.5)


def test_verl_writes_them_to_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from verl.utils.tracking import Tracking

    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path))
    log = Tracking(project_name="turntree", experiment_name="test", default_backend=["tensorboard"])
    log.log(data=engine_metrics([counters()]), step=3)
    del log
    read = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in read.Scalars("turntree/forward_passes")] == [3]
    assert set(read.Tags()["scalars"]) == set(engine_metrics([counters()]))
