import asyncio
from functools import partial
from typing import Any

import pytest
from interrupting import InterruptedEngine

from turntree.agents.engines.local import LocalEngineConfig
from turntree.agents.engines.protocol import Sampling
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.resuming.interrupted_episodes import InterruptedEpisode, Newest
from turntree.agents.resuming.recorded_env import RecordedEnv, can_be_recorded
from turntree.envs import Env, Limits, Message, Reply, Role, Task

TURNS, TOKENS = 3, 6


class Counting(Env):
    # Replies with the sum of all letters so far, and counts its steps.
    forkable = True
    static_attributes = Env.static_attributes | {"steps"}

    def __init__(self) -> None:
        super().__init__(limits=Limits(max_turns=TURNS, max_turn_tokens=TOKENS))
        self.heard = 0
        self.steps = 0

    def task(self, index: int) -> Task:
        return Task(id=f"count/{index}", prompt=f"say {index}")

    def start(self, task: Task) -> list[Message]:
        self.heard = 0
        return list(super().start(task))

    def reply(self, message: Message) -> Reply:
        self.steps += 1
        self.heard += sum(map(ord, message.content))
        return Reply(messages=(Message(role=Role.USER, content=f"{self.heard}"),), reward=1.0)


class Outside(Counting):
    """Not forkable: a class must say so itself."""


@pytest.fixture(scope="module")
def model(chatml: Any, request: pytest.FixtureRequest) -> Any:
    # A policy with the tokenizer's tokens, for all engines of this file.
    import cores
    import interrupting

    patch = pytest.MonkeyPatch()
    size, base = len(chatml), cores.tiny_llama(len(chatml), sharpness=6.0)
    patch.setattr(interrupting, "tiny_llama", lambda: _copy(base, size))
    patch.setattr(interrupting, "CONFIG", LocalEngineConfig(max_batch=4, max_context=256, dtype="float64", threads=1))
    yield base
    patch.undo()


def _copy(model: Any, size: int) -> Any:
    import cores

    new = cores.tiny_llama(size)
    new.load_state_dict(model.state_dict())
    return new


async def play(engine: InterruptedEngine, chatml: Any, *, after: int = 0) -> tuple[Episode, InterruptedEpisode]:
    # One episode, played again for each of ``after`` updates that come when it has ended.
    newest, env = Newest(), RecordedEnv(Counting())
    roll = partial(_roll, renderer=Renderer(chatml))
    one = InterruptedEpisode(engine, env, roll, newest, wait=engine.update)
    episode = await one.play()
    for _ in range(after):
        engine._moments, engine.sampled = [0], 1
        await engine.update()
        newest.see(engine.version)
        env.attach(Counting()) if env.detach() else None
        episode = await one.play()
    return episode, one


async def _roll(env: Any, turns: Any, *, renderer: Renderer) -> Episode:
    return await rollout(env, turns, renderer, index=1, seed=7, sampling=Sampling(temperature=1.0, seed=3))


def told(episode: Episode) -> list[Any]:
    return [(turn.prompt_ids, turn.completion.token_ids, turn.observation, turn.reward) for turn in episode.turns]


@pytest.mark.parametrize("by", [0.001, 0.1])
def test_an_episode_interrupted_at_any_moment_is_that_of_the_new_weights_alone(chatml: Any, model: Any, by: float):
    async def run() -> None:
        alone, _ = await play(InterruptedEngine(version=1, by=by), chatml)
        twice, _ = await play(InterruptedEngine(version=2, by=by), chatml)
        assert len(alone.turns) == TURNS
        assert told(alone) != told(twice) or by < 0.1
        for moment in (3, TOKENS, 2 * TOKENS + 2):
            found, one = await play(InterruptedEngine([moment], by=by), chatml)
            assert told(found) == told(alone), moment
            assert {turn.completion.weights_version for turn in found.turns} == {1}
            assert one.counts.reverified_turns
            kills = len(one._asked) + 1  # the request that re-verifies one of its turns
            found, one = await play(InterruptedEngine([moment], by=by, deaths={kills}), chatml)
            assert told(found) == told(alone), "nothing is lost with the engine"
            assert one.counts.lost_turns == 1
        found, _ = await play(InterruptedEngine([2 * TOKENS + 1, 3 * TOKENS], by=by), chatml)
        assert told(found) == told(twice)
        ended, one = await play(InterruptedEngine(by=by), chatml, after=2)
        assert told(ended) == told(twice), "it had ended, and waited to be trained on"
        assert one.counts.interruptions == 0 < one.counts.kept

    asyncio.run(run())


def test_kept_turns_cost_no_step_of_the_environment(chatml: Any, model: Any) -> None:
    async def run() -> None:
        found, one = await play(InterruptedEngine([2 * TOKENS + 2], by=0.0), chatml)
        env = one.env.detach()
        assert isinstance(env, Counting)
        assert env.steps == TURNS == len(found.turns)
        assert one.counts.kept == one.counts.offered > 0 == one.counts.dropped == one.counts.rewinds
        assert one.counts.passes_saved > 0
        assert one.seeds
        assert one.version == 1

    asyncio.run(run())


def test_an_episode_that_is_not_reverified_at_its_end_is_another_one(chatml: Any, model: Any) -> None:
    # Control: it keeps the turns of the weights with which it ended.
    async def run() -> None:
        stale, _ = await play(InterruptedEngine(), chatml)
        alone, _ = await play(InterruptedEngine(version=1), chatml)
        assert told(stale) != told(alone)

    asyncio.run(run())


def test_an_environment_goes_back_only_if_its_steps_leave_no_trace() -> None:
    assert can_be_recorded(Counting())
    assert not can_be_recorded(Outside())
    assert not can_be_recorded(object())


def test_a_record_is_followed_until_something_else_is_said() -> None:
    env = RecordedEnv(Counting())
    begin = env.reset(seed=1, options={"index": 1})
    first, second = env.step("a"), env.step("b")
    assert env.reset(seed=1, options={"index": 1}) == begin
    assert env.step("a") == first
    assert env.unwrapped.steps == 2
    other = env.step("c")
    assert other != second
    assert env.unwrapped.heard == ord("a") + ord("c")
    env.attach(Counting()) if env.detach() else None
    env.reset(seed=1, options={"index": 1})
    assert env.step("a") == first
    assert env.step("c") == other
    assert env.unwrapped.current_task.id == "count/1"
    changed = env.reset(seed=2, options={"index": 2})
    assert changed != begin
