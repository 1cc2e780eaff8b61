import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import current_thread
from typing import Any

import escaping
import gymnasium
import pytest
from adder import Adder, play
from escaping import NAMED, TASKS, Escaping, Quick
from machine_speed import patience, soon
from recording_engine import RecordingEngine, a_turn

from turntree.agents.engines.protocol import FinishReason, Sampling, derive_seed
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.dialogue import dialogue_states
from turntree.agents.episodes.episode import StopReason
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.envs import make
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Role
from turntree.envs.task import Task
from turntree.spec_tree import DialogueState


async def test_an_episode_holds_the_dialogue_its_rewards_and_why_it_ended(renderer: Renderer) -> None:
    episode, _ = await play(renderer, "call 4", "call 5", "5", seed=3)
    assert [str(m.role) for m in episode.messages] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert [turn.text for turn in episode.turns] == ["call 4", "call 5", "5"]
    assert [turn.reward for turn in episode.turns] == [0.25, 0.25, 1.0]
    assert episode.turns[0].observation[0].content == "heard 4"
    assert episode.messages[1].tool_calls[0].arguments == {"x": "4"}
    assert (episode.stop_reason, episode.rewards, episode.failure) == (StopReason.DONE, {"right": 1.0}, "")
    assert (episode.task.id, episode.seed, episode.env_id) == ("adder/4", 3, "Adder")


async def test_each_prompt_begins_with_the_prompt_and_response_before_it(renderer: Renderer) -> None:
    episode, engine = await play(renderer, "call 4", "call 5", "call 6", "5")
    for before, after in zip(episode.turns, episode.turns[1:], strict=False):
        said = before.prompt_ids + before.completion.token_ids
        assert after.prompt_ids[: len(said)] == said
        assert len(after.prompt_ids) > len(said)
    assert [request.prompt_ids for request in engine.asked] == [turn.prompt_ids for turn in episode.turns]


async def test_the_engine_is_told_the_dialogue_state_which_is_recorded(renderer: Renderer) -> None:
    episode, engine = await play(renderer, "call 4", "call 5", "5")
    states = [request.state for request in engine.asked]
    history = ["", '["add",{"x":"4"}]', '["add",{"x":"4"}]["add",{"x":"5"}]']
    assert states == [
        DialogueState.from_tokens(turn.prompt_ids, task="adder/4", tools=tools, env="Adder")
        for turn, tools in zip(episode.turns, history, strict=True)
    ]
    assert dialogue_states(episode) == states
    # Assistant messages before the first turn are no turns.
    shot = Message(role=Role.ASSISTANT, content="an example")
    shown = replace(episode, messages=(shot, *episode.messages))
    assert dialogue_states(shown) == dialogue_states(episode)


async def test_a_task_can_be_given_drawn_or_named_by_its_index(renderer: Renderer) -> None:
    task = Task(id="mine", prompt="2+2", answer="4")
    given, _ = await play(renderer, "4", task=task, index=None)
    drawn, _ = await play(renderer, "4", index=None, seed=1)
    again, _ = await play(renderer, "4", index=None, seed=1)
    assert given.task is task
    assert (given.reward, drawn.task) == (1.0, again.task)
    with pytest.raises(ValueError, match="not both"):
        await play(renderer, "4", task=task, index=3)


async def test_each_turn_draws_with_its_own_seed_derived_from_the_episodes(renderer: Renderer) -> None:
    async def seeds(**options: Any) -> list[int | None]:
        _, engine = await play(renderer, "call 4", "5", **options)
        return engine.seeds

    assert await seeds() == [None, None]
    assert await seeds(seed=7) == [derive_seed(7, 0), derive_seed(7, 1)]
    assert await seeds(seed=7, sampling=Sampling(seed=9)) == [derive_seed(9, 0), derive_seed(9, 1)]
    assert len({derive_seed(*parts) for parts in [(7, 0), (7, 1), (0, 7), (1, 23), (12, 3), (123,)]}) == 6
    assert all(0 <= derive_seed(a, b) < 2**63 for a in range(20) for b in range(20))


async def test_a_turn_gets_what_the_limits_leave(renderer: Renderer) -> None:
    async def limits_of(**limits: Any) -> list[int]:
        _, engine = await play(renderer, "call 4", "5", limits=Limits(**limits), sampling=Sampling(max_tokens=30))
        return [request.sampling.max_tokens for request in engine.asked]

    episode, _ = await play(renderer, "call 4", "5")
    first, second = (len(turn.prompt_ids) for turn in episode.turns)
    assert await limits_of(max_turn_tokens=40) == [40, 40]
    assert await limits_of(max_turn_tokens=None) == [30, 30]
    assert await limits_of(max_turn_tokens=40, max_episode_tokens=100) == [40, 40]
    assert await limits_of(max_turn_tokens=40, max_episode_tokens=35) == [35, 35 - (second - first)]
    assert await limits_of(max_turn_tokens=40, max_context_tokens=first + 35) == [35, 35 - (second - first)]
    _, engine = await play(renderer, "5", env=Adder(max_turn_tokens=17))
    assert engine.asked[0].sampling.max_tokens == 17, "the environment's own hold where none are given"


async def test_an_episode_without_room_for_a_turn_ends_for_its_tokens_or_turns(renderer: Renderer) -> None:
    none, engine = await play(renderer, "5", limits=Limits(max_context_tokens=3))
    assert (none.stop_reason, none.turns, engine.asked) == (StopReason.MAX_TOKENS, (), [])
    one, _ = await play(renderer, "call 4", "5", limits=Limits(max_episode_tokens=8))
    assert one.stop_reason is StopReason.MAX_TOKENS
    assert [turn.reward for turn in one.turns] == [0.25]
    assert not one.masked
    two, _ = await play(renderer, "call 4", "call 5", "5", env=Adder(max_turns=2))
    assert (two.stop_reason, len(two.turns)) == (StopReason.MAX_TURNS, 2)


async def test_an_environment_that_raises_or_reports_it_gives_a_masked_episode_and_plays_on(renderer):
    env = Adder()
    episode, _ = await play(renderer, "call 4", "crash", "5", env=env)
    assert episode.masked
    assert episode.failure == "RuntimeError: the disk is full"
    assert [turn.text for turn in episode.turns] == ["call 4", "crash"]
    assert episode.messages[-1].role is Role.ASSISTANT
    after, _ = await play(renderer, "5", env=env)
    assert (after.masked, after.reward) == (False, 1.0)
    episode, _ = await play(renderer, "report")
    assert (episode.stop_reason, episode.failure) == (StopReason.FAILURE, "calculator raised OSError")


async def test_a_reset_that_raises_gives_a_masked_episode_without_turns(renderer: Renderer) -> None:
    class Broken(Adder):
        def reset(self, **_: Any) -> Any:
            raise OSError("no such file")

    episode, _ = await play(renderer, "5", env=Broken())
    assert (episode.stop_reason, episode.failure) == (StopReason.FAILURE, "reset() raised OSError: no such file")
    assert (episode.turns, episode.messages, episode.task) == ((), (), None)


@pytest.mark.parametrize(
    ("then", "says"),
    [
        ([a_turn(5, finish_reason=FinishReason.ABORT)], "aborted turn 1"),
        ([a_turn()], "sampled nothing in turn 1"),
        ([], "the script has 1 texts"),
    ],
)
async def test_an_engine_that_fails_gives_a_masked_episode(renderer, then, says):
    engine = RecordingEngine(ScriptedEngine(["call 4"], renderer.tokenizer), *then)
    episode = await rollout(Adder(), engine, renderer, index=4)
    assert episode.stop_reason is StopReason.FAILURE
    assert says in episode.failure
    assert len(episode.turns) == 1


async def plays_on(renderer: Renderer, index: int, env: Any, **options: Any) -> Any:
    return (await play(renderer, escaping.policy(env.task(index).prompt), env=env, index=index, **options))[0]


ESCAPES = [(kind, index) for index, task in enumerate(TASKS) for kind in (Escaping, Quick)]
#: in the event loop, which runs in the main thread, an interrupt is the user's
ESCAPES = [(kind, index) for kind, index in ESCAPES if kind is Escaping or "interrupt" not in TASKS[index]]


@pytest.mark.parametrize(("kind", "index"), ESCAPES)
async def test_whatever_an_environment_raises_is_a_failure_and_neither_ends_the_loop_nor_hangs(renderer, kind, index):
    env = kind()
    part, how = TASKS[index].split()
    episode = await plays_on(renderer, index, env)
    assert (episode.stop_reason, episode.masked) == (StopReason.FAILURE, True)
    where = {"tool": "tool 'breaks' raised ", "reply": "reply() raised ", "reset": "reset() raised "}[part]
    assert episode.failure == where + NAMED[how]
    after = await plays_on(renderer, len(TASKS), env)
    assert (after.masked, after.reward) == (False, 1.0)


@pytest.mark.parametrize(("text", "named"), [("breaks(hang)", "tool 'breaks'"), ("I say hang", "reply()")])
async def test_a_step_that_hangs_is_a_failure_of_time_and_ends_its_episode_once_it_goes_on(renderer, text, named):
    env, closed = Escaping(step_seconds=patience(0.3)), []
    env.close_episode = lambda: closed.append(env.step_part)  # type: ignore[method-assign]
    with escaping.held():
        episode, _ = await play(renderer, text, env=env, index=len(TASKS))
        assert episode.failure_kind == "timeout"
        said = f"raised TimeoutError: it did not end within step_seconds, {env.step_seconds:g} s"
        assert episode.failure == f"{named} {said}"
        assert len(closed) == 1, "by the reset, and not while a thread is in the step"
    await soon(lambda: len(closed) == 2)


async def test_a_cancellation_in_the_middle_of_a_step_is_none_of_the_environments(renderer: Renderer) -> None:
    env = Escaping()
    with escaping.held():
        running = asyncio.create_task(play(renderer, "breaks(hang)", env=env, index=len(TASKS)))
        await soon(lambda: env.step_part != "" or running.done())
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_cancelled_rollout_is_cancelled_and_not_a_failure(renderer: Renderer) -> None:
    slow = RecordingEngine(lambda *_: asyncio.sleep(60))
    running = asyncio.create_task(rollout(Adder(), slow, renderer, index=4))
    while not (slow.asked or running.done()):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_the_environment_runs_in_the_executor_when_one_is_given(renderer: Renderer) -> None:
    inline, aside = Adder(), Adder()
    await play(renderer, "call 4", "5", env=inline)
    with ThreadPoolExecutor(1, thread_name_prefix="aside") as executor:
        await play(renderer, "call 4", "5", env=aside, executor=executor)
    assert set(inline.threads) == {current_thread().name}
    assert [name[:5] for name in aside.threads] == ["aside"] * 3


async def test_an_environment_goes_by_its_id_and_plays_wrapped_as_bare(renderer: Renderer) -> None:
    episode, engine = await play(renderer, "#### 12", env=make("turntree/Arithmetic-v0"))
    assert (episode.env_id, engine.asked[0].state.env) == ("turntree/Arithmetic-v0", episode.env_id)
    bare, _ = await play(renderer, "call 4", "5")
    wrapped, _ = await play(renderer, "call 4", "5", env=gymnasium.wrappers.OrderEnforcing(Adder()))
    assert wrapped == bare
