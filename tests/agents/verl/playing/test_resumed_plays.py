from typing import Any

import pytest

from turntree.agents.engines.protocol import Completion, FinishReason, TurnRequest
from turntree.agents.errors import EngineLost
from turntree.agents.resuming.resume_config import OnResume
from turntree.agents.verl.playing.player import EpisodePlayer

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}


class Versioned:
    # Samples as many words as its weights have versions; ``aborts`` of its requests end at an update.

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.version, self.aborts = 0, 0
        self.requests: list[TurnRequest] = []
        self.lost = False

    async def generate(self, request: TurnRequest) -> Completion:
        self.requests.append(request)
        if self.lost:
            raise EngineLost("it was killed")
        ids = self.tokenizer("yes" + " no" * self.version, add_special_tokens=False)["input_ids"]
        tokens, reason = (*ids, request.sampling.stop_token_ids[0]), FinishReason.STOP
        if self.aborts and len(self.requests) % 2 == 0:
            self.aborts -= 1
            self.version += 1
            tokens, reason = tokens[:1], FinishReason.ABORT
        return Completion(
            token_ids=tokens, logprobs=(-1.0,) * len(tokens), finish_reason=reason, weights_version=self.version
        )


def versions(outputs: list[Any]) -> set[tuple[int, int]]:
    return {(o.extra_fields["min_global_steps"], o.extra_fields["max_global_steps"]) for o in outputs}


@pytest.fixture
def engine(chatml: Any) -> Versioned:
    return Versioned(chatml)


@pytest.fixture
def forking(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "env_id": "trained_envs:Forking", "env_kwargs": "{}", "uid": "group"}


async def test_a_group_that_waits_is_reverified_and_scored_again_under_the_newest_weights(
    rollout_config: Any, chatml: Any, forking: dict[str, Any], engine: Versioned
) -> None:
    player = EpisodePlayer(rollout_config, chatml, OnResume.EPISODE)
    first = await player.play_group(SAMPLING, forking, lambda: engine, size=2)
    assert versions(first) == {(0, 0)}
    assert player.version_of("group") == 0
    assert player.resuming is not None
    engine.version = 1
    player.resuming.newest.see(1)
    again = await player.reverify_group("group")
    assert versions(again) == {(1, 1)}
    assert player.version_of("group") == 1
    assert again[0].reward_score < first[0].reward_score, "its last turn is longer now"
    seeds = [request.sampling.seed for request in engine.requests]
    assert set(seeds[:4]) == set(seeds[4:]), "the same noise"
    assert not any(seed in player.resuming.trained for seed in seeds)
    player.trained_on("group")
    assert all(seed in player.resuming.trained for seed in seeds)


@pytest.mark.parametrize(
    ("how", "env", "found"),
    [
        (OnResume.EPISODE, "Forking", {(1, 1)}),
        (OnResume.EPISODE, "Talking", {(0, 1)}),
        (OnResume.TURN, "Forking", {(0, 1)}),
        (OnResume.KEEP, "Forking", {(0, 1)}),
    ],
)
async def test_an_interrupted_episode_goes_on_as_the_run_has_it(
    rollout_config: Any, chatml: Any, forking: dict[str, Any], engine: Versioned, how: OnResume, env: str, found: Any
) -> None:
    engine.aborts = 1
    player = EpisodePlayer(rollout_config, chatml, how)
    outputs = await player.play_group(SAMPLING, {**forking, "env_id": f"trained_envs:{env}"}, lambda: engine, size=1)
    assert versions(outputs) == found
    counts = outputs[0].extra_fields["turntree_episode"]
    assert counts["resume_interruptions"] == 1
    assert counts["resume_stale_episodes"] == (found != {(1, 1)})
    assert not outputs[0].masked


async def test_a_group_that_cannot_be_reverified_is_masked_and_not_waited_for(rollout_config, chatml, forking, engine):
    player = EpisodePlayer(rollout_config, chatml, OnResume.EPISODE)
    await player.play_group(SAMPLING, forking, lambda: engine, size=1)
    engine.lost = True
    assert player.resuming is not None
    player.resuming.newest.see(1)
    (output,) = await player.reverify_group("group")
    assert output.masked
    assert player.version_of("group") == 1


async def test_a_group_that_is_left_out_is_kept_no_longer_and_counts_as_untrained(
    rollout_config, chatml, forking, engine
):
    player = EpisodePlayer(rollout_config, chatml, OnResume.EPISODE)
    await player.play_group(SAMPLING, forking, lambda: engine, size=1)
    player.forget("group")
    with pytest.raises(KeyError):
        await player.reverify_group("group")
    player.forget("group")
    assert player.resuming is not None
    assert not any(request.sampling.seed in player.resuming.trained for request in engine.requests)


async def test_a_synchronous_training_counts_and_keeps_nothing(rollout_config, chatml, forking, engine):
    player = EpisodePlayer(rollout_config, chatml)
    (output,) = await player.play_group(SAMPLING, forking, lambda: engine, size=1)
    assert player.resuming is None
    assert "resume_kept" not in output.extra_fields["turntree_episode"]


async def test_a_task_that_is_begun_twice_in_a_step_has_other_noise(rollout_config, chatml, forking, engine):
    player = EpisodePlayer(rollout_config, chatml, OnResume.TURN)
    for repeat in (0, 1):
        await player.play_group(SAMPLING, {**forking, "repeat": repeat}, lambda: engine, size=1)
    seeds = [request.sampling.seed for request in engine.requests]
    assert len(set(seeds)) == len(seeds)
