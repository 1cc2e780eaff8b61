from pathlib import Path

import pytest
from real_training import PROMPTS, SAMPLES, Training, run_training

from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.engines.monitors import ALARM
from turntree.agents.episodes.record import Record

pytestmark = [pytest.mark.slow, pytest.mark.release]

STEPS = 2  #: the second step has the tasks of the first
NEAR_TIES = 3  #: episodes of a step that may differ, of 16: float32 batches are summed in another order


def run(root: Path, *overrides: str, pure: bool) -> Training:
    settings = "tool_format: compact, system_prompt: '', describes_tools: true, min_numbers: 4, max_numbers: 4"
    settings += ", limits: {max_turns: 6, max_turn_tokens: 16}"
    return run_training(
        warm_started_policy(),
        root,
        "Slow",
        "speculation=[tree,tool_calls_ahead]",
        f"turntree.env_kwargs={{{settings}, asked: {root / 'asked'}, pure: {str(pure).lower()}}}",
        "actor_rollout_ref.actor.optim.lr=0.0005",
        "data.max_response_length=160",
        *overrides,
        steps=STEPS,
    )


@pytest.fixture(scope="module")
def impure(tmp_path_factory: pytest.TempPathFactory) -> Training:
    # No imported store, and a tool that is not declared pure.
    return run(tmp_path_factory.mktemp("impure"), f"trainer.save_freq={STEPS}", pure=False)


@pytest.fixture(scope="module")
def ahead(impure: Training, tmp_path_factory: pytest.TempPathFactory) -> Training:
    return run(tmp_path_factory.mktemp("ahead"), f"turntree.import_turns={impure.folder.root}", pure=True)


def counted(training: Training, name: str) -> list[float]:
    return [report.metrics[f"turntree/{name}"] for report in training.reports]


def calls(training: Training) -> int:
    episodes = [record.episode for step in range(1, STEPS + 1) for record in training.records(step).values()]
    return sum(len(message.tool_calls) for episode in episodes for message in episode.messages)


def tokens(record: Record) -> list[tuple[int, ...]]:
    return [turn.completion.token_ids for turn in record.episode.turns]


def asked(training: Training) -> int:
    return len((training.folder.root.parent / "asked").read_text().splitlines())


def test_calls_are_made_ahead_once_episodes_of_their_task_have_ended(ahead: Training) -> None:
    assert ahead.status == 0, ahead.log[-3000:]
    assert ahead.steps == [*range(1, STEPS + 1)]
    made, used, wasted = (counted(ahead, f"tool_calls_ahead_{name}") for name in ("made", "used", "wasted"))
    assert used[-1] > 0
    assert made == [one + other for one, other in zip(used, wasted, strict=True)]
    assert sum(counted(ahead, "tool_calls_ahead_saved_seconds")) > 0
    assert counted(ahead, "imported_turns")[0] > 0
    # The other run had the same noise: how often its turns are right tells nothing.
    assert all("exactness/exact_acceptance_z" not in report.metrics for report in ahead.reports)
    assert all(abs(report.metrics["exactness/exact_entropy_z"]) < ALARM for report in ahead.reports)
    assert asked(ahead) == calls(ahead) + sum(wasted), "what was used was called once"


def test_a_tool_that_is_not_pure_is_never_called_ahead(impure: Training) -> None:
    # Control: no imported turns are counted without a store, and acceptance is tested.
    assert impure.status == 0, impure.log[-3000:]
    assert sum(counted(impure, "tool_calls_ahead_made")) == 0
    assert asked(impure) == calls(impure) > PROMPTS * SAMPLES
    assert not any(report.metrics.get("turntree/imported_turns") for report in impure.reports)
    assert all("exactness/exact_acceptance_z" in report.metrics for report in impure.reports)


def test_neither_the_store_nor_the_calls_change_a_token(impure: Training, ahead: Training) -> None:
    for step in range(1, STEPS + 1):
        one, other = impure.records(step), ahead.records(step)
        assert one.keys() == other.keys()
        differing = [key for key in one if tokens(one[key]) != tokens(other[key])]
        assert len(differing) <= NEAR_TIES, f"step {step}: {differing}"
