import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import escaping
import meeting
import pytest
from escaping import NAMED, TASKS, WELL
from fragile_env import Fragile
from machine_speed import patience
from recording_engine import RecordingEngine
from tables import table

from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.record import read_records
from turntree.agents.errors import EngineLost
from turntree.agents.verl.episodes.output import EpisodeOutput
from turntree.agents.verl.playing.idle_envs import IdleEnvs
from turntree.agents.verl.playing.player import EpisodePlayer
from turntree.rewards import Sample, reward

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}


class Stage:
    def __init__(self, config: Any, tokenizer: Any, row: dict[str, Any]) -> None:
        self.config, self.tokenizer, self.row = config, tokenizer, row

    @property
    def settings(self) -> Any:
        return self.config.custom.turntree

    def player(self) -> EpisodePlayer:
        return EpisodePlayer(self.config, self.tokenizer)

    def engine(self, *texts: str) -> RecordingEngine:
        return RecordingEngine(ScriptedEngine(texts, self.tokenizer))

    async def play(self, *texts: str, **row: Any) -> tuple[EpisodeOutput, RecordingEngine]:
        engine = self.engine(*texts)
        (output,) = await self.player().play_group(SAMPLING, {**self.row, **row}, lambda: engine, size=1)
        return output, engine

    async def play_group(self, *texts: str, size: int) -> list[EpisodeOutput]:
        engines = map(self.engine, texts)
        return await self.player().play_group(SAMPLING, self.row, lambda: next(engines), size=size)


@pytest.fixture
def stage(rollout_config: Any, chatml: Any, row: dict[str, Any]) -> Stage:
    return Stage(rollout_config, chatml, {**row, "env_id": "fragile_env:Fragile", "env_kwargs": "{}"})


def told(output: EpisodeOutput) -> dict[str, Any]:
    return output.extra_fields["reward_extra_info"]


@pytest.mark.parametrize(("texts", "tries", "score"), [*table(__file__, "tried"), (["fragile(boom)"] * 2, 2, None)])
async def test_an_episode_that_its_infrastructure_break_is_tried_once_more_with_its_seed_and_then_masked(
    stage: Stage, texts: list[str], tries: int, score: float | None
) -> None:
    output, engine = await stage.play(*texts)
    row, info = output.as_dict(), told(output)
    masked = score is None
    assert output.reward_score == (score or 0.0)
    assert (row["response_mask"].sum() == 0) == masked
    assert len(row["responses"]) > 1
    assert (info["failure"], info["masked"], info["attempts"]) == (masked, masked, tries)
    assert (info["failed_attempts_tool"], info["failed_attempts_environment"], info["failed_attempts_engine"]) == (
        tries - 1 + masked,
        0,
        0,
    )
    # Each turn has a seed of its own, which a second try has again.
    assert (engine.seeds[0] == engine.seeds[-1]) == (tries == len(texts))


async def test_what_tools_say_is_not_the_policys(stage: Stage) -> None:
    output, _ = await stage.play("fragile(a)", "good")
    assert output.num_turns == 4
    assert 0 < sum(output.response_mask) < len(output.response_mask)


async def test_an_episode_whose_replica_is_lost_is_played_again_on_another(stage: Stage) -> None:
    engines = iter([RecordingEngine(EngineLost("killed")), stage.engine("good")])
    (output,) = await stage.player().play_group(SAMPLING, stage.row, lambda: next(engines), size=1)
    info = told(output)
    assert (output.reward_score, info["failed_attempts_engine"], info["masked"]) == (1.0, 1, 0.0)
    assert sum(output.response_mask) > 0


async def test_a_reward_that_raises_is_asked_once_more_and_then_masks(stage: Stage, own_rewards: None) -> None:
    failures: list[BaseException] = []

    @reward("shaky")
    def shaky(sample: Sample) -> float:
        if failures:
            raise failures.pop()
        return 1.0

    stage.settings.rewards = {"shaky": 1.0}
    for times, lost in ((1, 0), (2, 1)):
        failures += [OSError("the judge is gone"), SystemExit(0)][:times]
        (output,) = await stage.play_group("5", size=1)
        info = told(output)
        assert (info["failed_attempts_reward"], info["masked"], bool(sum(output.response_mask))) == (
            lost,
            lost,
            not lost,
        )


async def test_an_environment_that_cannot_be_made_is_a_masked_episode(stage: Stage) -> None:
    output, _ = await stage.play(env_id="no/Such-v0")
    assert output.response_mask == [0]
    assert told(output)["failure"] == 1.0


ESCAPES = [*enumerate(TASKS), (len(TASKS) + WELL, "tool hang")]


@pytest.mark.parametrize(("index", "task"), ESCAPES)
async def test_whatever_an_environment_raises_masks_its_episode_and_the_next_is_played(stage, tmp_path, index, task):
    seconds = patience(0.3) if "hang" in task else 1000.0
    named = {"env_id": "escaping:Escaping", "env_kwargs": json.dumps({"step_seconds": seconds})}
    with escaping.held():
        output, _ = await stage.play(*[escaping.policy(task)] * 2, **named, index=index)
    assert (told(output)["masked"], told(output)["attempts"], sum(output.response_mask)) == (1.0, 2, 0)
    (record,) = read_records(tmp_path / "run" / "episodes" / "step_000005.jsonl")
    part, how = task.split()
    assert {"tool": "tool 'breaks'", "reply": "reply()", "reset": "reset()"}[part] in record.episode.failure
    assert record.episode.failure.endswith(NAMED.get(how, f"step_seconds, {seconds:g} s"))
    well, _ = await stage.play("I say well", **named, index=len(TASKS))
    assert (well.reward_score, told(well)["masked"]) == (1.0, 0.0)


async def test_an_environment_whose_making_would_end_the_process_is_a_masked_episode(stage: Stage) -> None:
    output, _ = await stage.play(env_id="escaping:Unmade")
    assert (told(output)["masked"], output.response_mask) == (1.0, [0])


async def test_samples_of_a_group_differ_and_a_rerun_does_not(stage: Stage) -> None:
    async def seeds(step: int) -> list[int | None]:
        engine = stage.engine(*["good"] * 3)
        await stage.player().play_group(SAMPLING, {**stage.row, "global_steps": step}, lambda: engine, size=3)
        return engine.seeds

    assert await seeds(1) == await seeds(1)
    assert len({seed for step in range(3) for seed in await seeds(step)}) == 9


async def test_the_samples_of_a_task_start_in_one_state(stage: Stage, row: dict[str, Any]) -> None:
    stage.row = row
    first, second = await stage.play_group("#### 1", "#### 1", size=2)
    other, _ = await stage.play("#### 1", index=4)
    assert first.prompt_ids == second.prompt_ids != other.prompt_ids


async def test_responses_stay_within_verls_limits(stage: Stage) -> None:
    stage.config.response_length = 30
    output, _ = await stage.play(*["fragile(aaaaaaaaaaaaaaaaaaaaaa)"] * 9)
    assert 1 < len(output.response_ids) <= 30


async def test_training_episodes_are_recorded_and_validation_is_not(stage: Stage, tmp_path: Path) -> None:
    await stage.play("good")
    await stage.play("good", extra_info={"split": "val"})
    (record,) = read_records(tmp_path / "run" / "episodes" / "step_000005.jsonl")
    assert (record.labels["step"], record.labels["index"], record.labels["session"]) == (5, 3, 0)
    assert (record.episode.reward, record.episode.seed) == (1.0, 3)


async def test_turns_of_a_validation_are_kept_apart_from_those_of_training(stage: Stage) -> None:
    _, trained = await stage.play("good")
    _, validated = await stage.play("good", extra_info={"split": "val"})
    assert [[asked.reuse for asked in engine.asked] for engine in (trained, validated)] == [[True], [False]]


@pytest.mark.parametrize(("coupled", "seeds"), [(True, 1), (False, 2)])
async def test_coupled_validations_have_one_noise_that_no_training_step_has(stage, coupled, seeds):
    stage.settings.validation = {"coupled": coupled}
    validation: list[int | None] = []
    training: list[int | None] = []
    for step in (1, 2):
        for seen, split in ((validation, "val"), (training, "train")):
            _, engine = await stage.play("good", global_steps=step, extra_info={"split": split})
            seen += engine.seeds
    assert (len(set(validation)), len(set(training))) == (seeds, 2)
    assert bool(set(validation) & set(training)) is not coupled


async def test_a_coupled_validation_says_what_changed_since_the_last_one(stage: Stage) -> None:
    stage.settings.validation = {"coupled": True}
    player = stage.player()
    row = {**stage.row, "extra_info": {"split": "val"}}

    async def validate(*texts: str, **changes: Any) -> dict[str, float]:
        engine = stage.engine(*texts)
        (output,) = await player.play_group(SAMPLING, {**row, **changes}, lambda: engine, size=1)
        info = told(output)
        return {name: value for name, value in info.items() if name.startswith("coupled_")}

    assert await validate("good") == {}
    assert (await validate("good"))["coupled_unchanged"] == 1.0
    changed = await validate("fragile(a)", "good")
    assert (changed["coupled_unchanged"], changed["coupled_same_tokens"]) == (0.0, 0.0)
    assert await validate("good", index=4) == {}, "another episode"
    assert await validate("good", extra_info={"split": "train"}) == {}
    await validate(*["fragile(boom)"] * 2)
    assert (await validate("fragile(a)", "good"))["coupled_unchanged"] == 1.0, "a lost episode is none"


async def test_each_sample_of_a_coupled_validation_is_compared_with_itself(stage: Stage) -> None:
    stage.settings.validation = {"coupled": True}
    player = stage.player()
    row = {**stage.row, "extra_info": {"split": "val"}}
    told_of = []
    for _ in range(2):
        engines = map(stage.engine, ("good", "bad"))
        outputs = await player.play_group(SAMPLING, row, lambda engines=engines: next(engines), size=2)  # type: ignore[misc]
        told_of.append([told(output).get("coupled_unchanged") for output in outputs])
    assert told_of == [[None, None], [1.0, 1.0]]


async def test_nothing_is_recorded_where_no_folder_is_named(stage: Stage, tmp_path: Path) -> None:
    del stage.config.custom
    await stage.play("good")
    assert not list(tmp_path.iterdir())


async def test_a_broken_environment_is_not_used_again(stage: Stage) -> None:
    player, before = stage.player(), Fragile.made
    for texts, made in ((["fragile(boom)", "fragile(boom)"], 2), (["good"], 3), (["good"], 3)):
        engine = stage.engine(*texts)
        await player.play_group(SAMPLING, stage.row, lambda engine=engine: engine, size=1)  # type: ignore[misc]
        assert Fragile.made - before == made


async def test_settings_with_limits_reach_the_environment(stage: Stage) -> None:
    output, engine = await stage.play(*["fragile(a)"] * 5, env_kwargs=json.dumps({"limits": {"max_turns": 2}}))
    assert len(engine.asked) == 2
    assert told(output)["truncated"] == 1.0


def test_environments_of_the_same_settings_share_a_memo_where_the_run_wants_one() -> None:
    assert IdleEnvs(0).take(("turntree/Arithmetic-v0", "{}")).memo is None
    envs = IdleEnvs(5)
    one, same, other = (envs.take(("turntree/Arithmetic-v0", s)) for s in ("{}", "{}", '{"max_numbers": 3}'))
    assert one.memo is same.memo is not None
    assert other.memo is not one.memo


async def test_a_group_is_scored_together_by_the_rewards_of_the_configuration(stage, own_rewards, tmp_path):
    @reward("first_half", group=True)
    def first_half(samples: Sequence[Sample]) -> list[float]:
        assert len(samples) == 3
        order = sorted(samples, key=lambda sample: len(sample.answer_text))
        return [float(order.index(sample) < 2) for sample in samples]

    stage.settings.rewards = {"answer": 1.0, "first_half": 0.5, "finished": 0}
    outputs = await stage.play_group("#### 5", "it is 5", "let me see: it is 6", size=3)
    assert [output.reward_score for output in outputs] == [1.5, 1.5, 0.0]
    info = told(outputs[2])
    assert (info["reward_answer"], info["reward_first_half"], info["reward_finished"]) == (0.0, 0.0, 1.0)
    records = list(read_records(tmp_path / "run" / "episodes" / "step_000005.jsonl"))
    assert [record.episode.reward for record in records] == [1.5, 1.5, 0.0]
    assert [record.labels["session"] for record in records] == [0, 1, 2]


async def test_a_sample_that_breaks_takes_the_mean_of_its_group(stage: Stage) -> None:
    stage.settings.rewards = {"answer": 1.0}
    outputs = await stage.play_group("5", "broken", "4", "broken", size=3)
    assert [output.reward_score for output in outputs] == [1.0, 0.5, 0.0]
    assert [bool(sum(output.response_mask)) for output in outputs] == [True, False, True]


async def test_verl_scores_where_it_is_asked_to(stage: Stage) -> None:
    stage.settings.update(rewards={"answer": 1.0}, score_in_verl=True)
    (output,) = await stage.play_group("5", size=1)
    assert output.reward_score is None


async def test_no_episode_of_verls_waits_for_the_tools_of_another(stage: Stage) -> None:
    player = stage.player()
    engine = ScriptedEngine(meeting.policy(stage.tokenizer, "meet_later"), stage.tokenizer)
    rows = [{**stage.row, "env_id": "meeting:Meeting", "index": index} for index in range(meeting.PEOPLE)]
    outputs = await asyncio.gather(*(player.play_group(SAMPLING, row, lambda: engine, size=1) for row in rows))
    assert [output.reward_score for (output,) in outputs] == [1.0] * meeting.PEOPLE


@pytest.mark.parametrize(
    ("settings", "seeded"),
    [
        ({}, True),
        ({"seeded": False}, False),
        ({"seeded": False, "reuse": {"mode": "same_seed"}}, True),
        ({"seeded": False, "reuse": {"mode": "rejection_sampling"}}, True),
        ({"seeded": False, "run_ahead": {"enabled": True}}, True),
        ({"seeded": False, "validation": {"coupled": True}}, True),
    ],
)
async def test_turns_have_seeds_where_they_are_promised_or_a_way_needs_them(stage, settings, seeded):
    stage.config.custom.turntree = {**stage.settings, **settings}
    output, engine = await stage.play("fragile(a)", "good")
    assert output.reward_score == 1.0
    assert [seed is not None for seed in engine.seeds] == [seeded, seeded]
    assert len(set(engine.seeds)) == 1 + seeded
