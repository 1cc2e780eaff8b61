from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from turntree.agents.engines.protocol import Completion, Sampling
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.errors import EngineLost
from turntree.agents.record import read_records
from turntree.agents.verl.output import EpisodeOutput
from turntree.agents.verl.player import EpisodePlayer
from turntree.envs import Env, Message, Reply, Task, ToolError, tool
from turntree.rewards import Sample, registry, reward

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}


@tool
def fragile(x: str) -> str:
    """Answer, unless the task is the unlucky one.

    Args:
        x: What to say: ``boom`` breaks the tool, ``wrong`` is refused.
    """
    if x == "boom":
        raise OSError("the disk is full")
    if x == "wrong":
        raise ToolError("not like this")
    return "fine"


class Fragile(Env):
    """Turns that call ``fragile``, then an answer."""

    tools = (fragile,)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"tool_format": "compact", **kwargs})

    def task(self, index: int) -> Task:
        return Task(id=f"fragile/{index}", prompt="say something")

    def reply(self, message: Message) -> Reply:
        return Reply(reward=float(message.content == "good"), done=True)


class Watched:
    """Passes turns on and keeps the sampling of each."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.asked: list[Sampling] = []

    async def generate(self, prompt_ids: Any, sampling: Sampling, *, state: Any = None) -> Completion:
        self.asked.append(sampling)
        return await self.engine.generate(prompt_ids, sampling, state=state)


@pytest.fixture
def fragile_row(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "env_id": f"{__name__}:Fragile", "env_kwargs": "{}"}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this test module importable by name, as an environment's module is."""
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _this_module())


def _this_module() -> Any:
    import types

    module = types.ModuleType(__name__)
    module.__dict__.update(globals())
    return module


async def play(
    config: Any, tokenizer: Any, row: dict[str, Any], *texts: str, sampling: Any = None
) -> tuple[EpisodeOutput, Watched]:
    engine = Watched(ScriptedEngine(texts, tokenizer))
    player = EpisodePlayer(config, tokenizer)
    return await player.play(sampling or SAMPLING, row, lambda: engine), engine


async def test_an_episode_is_played_and_scored(rollout_config: Any, chatml: Any, fragile_row: Any) -> None:
    output, _ = await play(rollout_config, chatml, fragile_row, "fragile(a)", "good")
    assert output.reward_score == 1.0
    assert output.num_turns == 4
    assert sum(output.response_mask) < len(output.response_mask)


async def test_a_tool_that_raises_masks_the_episode_after_a_second_try(
    rollout_config: Any, chatml: Any, fragile_row: Any
) -> None:
    output, engine = await play(rollout_config, chatml, fragile_row, "fragile(boom)", "fragile(boom)")
    row = output.as_dict()
    assert row["response_mask"].sum() == 0
    assert len(row["responses"]) > 1
    info = output.extra_fields["reward_extra_info"]
    assert (info["failure"], info["masked"], info["attempts"]) == (1.0, 1.0, 2)
    assert (info["lost_tool"], info["lost_environment"], info["lost_engine"]) == (2, 0, 0)
    first, second = engine.asked
    assert first.seed == second.seed


async def test_a_second_try_that_works_counts(rollout_config: Any, chatml: Any, fragile_row: Any) -> None:
    output, _ = await play(rollout_config, chatml, fragile_row, "fragile(boom)", "good")
    assert output.reward_score == 1.0
    assert sum(output.response_mask) > 0
    info = output.extra_fields["reward_extra_info"]
    assert (info["attempts"], info["lost_tool"], info["masked"]) == (2, 1, 0.0)


async def test_an_episode_whose_replica_is_lost_is_played_again_on_another(
    rollout_config: Any, chatml: Any, fragile_row: Any
) -> None:
    class Dead:
        async def generate(self, *args: Any, **kwargs: Any) -> Completion:
            raise EngineLost("killed")

    watched = Watched(ScriptedEngine(["good"], chatml))
    engines = iter([Dead(), watched])
    output = await EpisodePlayer(rollout_config, chatml).play(SAMPLING, fragile_row, lambda: next(engines))
    info = output.extra_fields["reward_extra_info"]
    assert (output.reward_score, info["lost_engine"], info["masked"]) == (1.0, 1, 0.0)
    assert sum(output.response_mask) > 0


async def test_a_reward_that_raises_is_asked_once_more_and_then_masks(
    rollout_config: Any, chatml: Any, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    failures: list[Exception] = []

    @reward("shaky")
    def shaky(sample: Sample) -> float:
        if failures:
            raise failures.pop()
        return 1.0

    rollout_config.custom.turntree.rewards = {"shaky": 1.0}
    for times, lost in ((1, 0), (2, 1)):
        failures += [OSError("the judge is gone")] * times
        (output,) = await play_group(rollout_config, chatml, row, "5", size=1)
        info = output.extra_fields["reward_extra_info"]
        assert (info["lost_reward"], info["masked"], bool(sum(output.response_mask))) == (lost, lost, not lost)


async def test_a_tool_that_is_used_wrongly_is_the_policys_affair(
    rollout_config: Any, chatml: Any, fragile_row: Any
) -> None:
    output, _ = await play(rollout_config, chatml, fragile_row, "fragile(wrong)", "bad")
    assert sum(output.response_mask) > 0
    assert output.extra_fields["reward_extra_info"]["failure"] == 0.0


async def test_an_environment_that_cannot_be_made_is_a_masked_episode(
    rollout_config: Any, chatml: Any, row: dict[str, Any]
) -> None:
    output, _ = await play(rollout_config, chatml, {**row, "env_id": "no/Such-v0"})
    assert output.response_mask == [0]
    assert output.extra_fields["reward_extra_info"]["failure"] == 1.0


async def test_samples_of_a_group_differ_and_a_rerun_does_not(
    rollout_config: Any, chatml: Any, fragile_row: dict[str, Any]
) -> None:
    async def seed(**changes: Any) -> int | None:
        _, engine = await play(rollout_config, chatml, {**fragile_row, **changes}, "good")
        return engine.asked[0].seed

    assert await seed() == await seed()
    assert len({await seed(session_id=s, global_steps=g) for s in range(3) for g in range(3)}) == 9


async def test_the_samples_of_a_task_start_in_one_state(rollout_config: Any, chatml: Any, row: dict[str, Any]) -> None:
    first, _ = await play(rollout_config, chatml, {**row, "session_id": 0}, "#### 1")
    second, _ = await play(rollout_config, chatml, {**row, "session_id": 1}, "#### 1")
    other, _ = await play(rollout_config, chatml, {**row, "index": 4}, "#### 1")
    assert first.prompt_ids == second.prompt_ids != other.prompt_ids


async def test_responses_stay_within_verls_limits(rollout_config: Any, chatml: Any, fragile_row: Any) -> None:
    config = OmegaConf.merge(rollout_config, {"response_length": 30})
    output, _ = await play(config, chatml, fragile_row, *["fragile(aaaaaaaaaaaaaaaaaaaaaa)"] * 9)
    assert 1 < len(output.response_ids) <= 30


async def test_training_episodes_are_recorded_and_validation_is_not(
    rollout_config: Any, chatml: Any, fragile_row: dict[str, Any], tmp_path: Path
) -> None:
    await play(rollout_config, chatml, fragile_row, "good")
    await play(rollout_config, chatml, {**fragile_row, "extra_info": {"split": "val"}}, "good")
    (record,) = read_records(tmp_path / "run" / "episodes" / "step_000005.jsonl")
    assert (record.labels["step"], record.labels["index"], record.labels["session"]) == (5, 3, 1)
    assert record.episode.reward == 1.0
    assert record.episode.seed == 3


async def test_nothing_is_recorded_where_no_folder_is_named(chatml: Any, fragile_row: Any, tmp_path: Path) -> None:
    config = OmegaConf.create({"name": "turntree", "seed": 1, "prompt_length": 9, "response_length": 99})
    await play(config, chatml, fragile_row, "good")
    assert not list(tmp_path.iterdir())


async def test_a_broken_environment_is_not_used_again(
    rollout_config: Any, chatml: Any, fragile_row: dict[str, Any]
) -> None:
    player = EpisodePlayer(rollout_config, chatml)
    for texts, idle in ((["fragile(boom)", "fragile(boom)"], 0), (["good"], 1), (["good"], 1)):
        engine = ScriptedEngine(texts, chatml)
        await player.play(SAMPLING, fragile_row, lambda engine=engine: engine)  # type: ignore[misc]
        assert len(player._idle[fragile_row["env_id"], "{}"]) == idle


async def test_settings_with_limits_reach_the_environment(
    rollout_config: Any, chatml: Any, fragile_row: dict[str, Any]
) -> None:
    settings = json.dumps({"limits": {"max_turns": 2}})
    output, engine = await play(rollout_config, chatml, {**fragile_row, "env_kwargs": settings}, *["fragile(a)"] * 5)
    assert len(engine.asked) == 2
    assert output.extra_fields["reward_extra_info"]["truncated"] == 1.0


def test_environments_of_the_same_settings_share_a_memo_where_the_run_wants_one(
    rollout_config: Any, chatml: Any
) -> None:
    plain = EpisodePlayer(rollout_config, chatml)
    assert plain._make("turntree/Arithmetic-v0", "{}").memo is None
    rollout_config.custom.turntree.memo_results = 5
    player = EpisodePlayer(rollout_config, chatml)
    one, same, other = (player._make("turntree/Arithmetic-v0", s) for s in ("{}", "{}", '{"max_numbers": 3}'))
    assert one.memo is same.memo is not None
    assert other.memo is not one.memo


class Talkative(Env):
    """Gives 7 for anything."""

    def task(self, index: int) -> Task:
        return Task(id=f"talkative/{index}", prompt="say", answer="5", data_source="math")

    def reply(self, message: Message) -> Reply:
        if message.content == "broken":
            raise OSError("the disk is full")
        return Reply(reward=7.0, done=True)


async def play_group(config: Any, tokenizer: Any, row: dict[str, Any], *texts: str, size: int) -> list[EpisodeOutput]:
    engine = ScriptedEngine(texts, tokenizer)
    player = EpisodePlayer(config, tokenizer)
    talkative = {**row, "env_id": f"{__name__}:Talkative", "env_kwargs": "{}"}
    return await player.play_group(SAMPLING, talkative, lambda: engine, size=size)


async def test_a_group_is_scored_together_by_the_rewards_of_the_configuration(
    rollout_config: Any, chatml: Any, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    @reward("first_half", group=True)
    def first_half(samples: Sequence[Sample]) -> list[float]:
        assert len(samples) == 3
        order = sorted(samples, key=lambda sample: len(sample.answer_text))
        return [float(order.index(sample) < 2) for sample in samples]

    rollout_config.custom.turntree.rewards = {"answer": 1.0, "first_half": 0.5, "finished": 0}
    outputs = await play_group(rollout_config, chatml, row, "#### 5", "it is 5", "let me see: it is 6", size=3)
    assert [output.reward_score for output in outputs] == [1.5, 1.5, 0.0]
    info = outputs[2].extra_fields["reward_extra_info"]
    assert (info["reward_answer"], info["reward_first_half"], info["reward_finished"]) == (0.0, 0.0, 1.0)
    records = list(read_records(tmp_path / "run" / "episodes" / "step_000005.jsonl"))
    assert [record.episode.reward for record in records] == [1.5, 1.5, 0.0]
    assert [record.labels["session"] for record in records] == [0, 1, 2]


async def test_a_sample_that_breaks_takes_the_mean_of_its_group(
    rollout_config: Any, chatml: Any, row: dict[str, Any]
) -> None:
    rollout_config.custom.turntree.rewards = {"answer": 1.0}
    outputs = await play_group(rollout_config, chatml, row, "5", "broken", "broken", "4", size=3)
    assert [output.reward_score for output in outputs] == [1.0, 0.5, 0.0]
    assert [bool(sum(output.response_mask)) for output in outputs] == [True, False, True]


async def test_verl_scores_where_it_is_asked_to(rollout_config: Any, chatml: Any, row: dict[str, Any]) -> None:
    rollout_config.custom.turntree.update(rewards={"answer": 1.0}, score_in_verl=True)
    (output,) = await play_group(rollout_config, chatml, row, "5", size=1)
    assert output.reward_score is None
