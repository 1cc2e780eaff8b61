import asyncio
import math
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from machine_speed import eventually, patience

from turntree.agents.engines.protocol import Completion, TurnRequest
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop import tool_calls_ahead
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.loop.stored_episodes import StoredEpisodes
from turntree.agents.loop.tool_calls_ahead import Credit, ToolCallsAhead, same_state
from turntree.envs import Env, Limits, Message, Reply, Task, Tool, ToolError, ToolExecutor, Toolset, tool


def call(item: str, words: str = "") -> str:
    return f'{words}<tool_call>\n{{"name": "price", "arguments": {{"item": "{item}"}}}}\n</tool_call>'


class Counting(Env):
    # Returns prices and counts its calls in all copies; the length of all texts so far is its state.

    static_attributes = Env.static_attributes | {"asked", "broken"}

    def __init__(self, *, pure: bool = False, **settings: Any) -> None:
        super().__init__(limits=Limits(max_turn_tokens=256, max_tool_calls=3), **settings)
        self.asked: list[str] = []
        self.broken = 0
        self.sum = 0

        def price(item: str) -> int:
            """Ask for a price.

            Args:
                item: What
            """
            self.asked.append(item)
            if self.broken:
                self.broken -= 1
                raise OSError("the line is down")
            if item == "air":
                raise ToolError("not for sale")
            return len(item)

        self.tools = (Tool(price, pure=pure),)

    def task(self, index: int) -> Task:
        return Task(id=str(index), prompt="Shop.")

    def start(self, task: Task) -> list[Message]:
        self.sum = 0
        return list(super().start(task))

    def step(self, action: str) -> Any:
        self.sum += len(action)
        return super().step(action)

    def reply(self, message: Message) -> Reply:
        return Reply(done=True, reward=float(self.sum))


class Forkable(Counting):
    forkable = True


def forking() -> Forkable:
    return Forkable()


def pure() -> Counting:
    return Counting(pure=True)


class Waiting(ScriptedEngine):
    # Waits in its first turn until what began at the reset is done.

    def __init__(self, script: Sequence[str], tokenizer: Any, begun: Callable[[], bool]) -> None:
        super().__init__(script, tokenizer)
        self._begun = begun

    async def generate(self, request: TurnRequest) -> Completion:
        begun, self._begun = self._begun, lambda: True
        for _ in range(30_000):
            if begun():
                break
            await asyncio.sleep(0.001)
        return await super().generate(request)


def play(
    env: Counting,
    script: Sequence[str],
    tokenizer: Any,
    *,
    calls: ToolCallsAhead | None = None,
    begun: Callable[[], bool] = lambda: True,
    executor: Executor | None = None,
    stored: StoredEpisodes | None = None,
) -> Episode:
    engine = Waiting(script, tokenizer, begun)
    roll = rollout(
        env, engine, Renderer(tokenizer), index=0, seed=0, tool_calls_ahead=calls, executor=executor, stored=stored
    )
    return asyncio.run(roll)


def stored_runs(make: Callable[[], Counting], tokenizer: Any, *scripts: Sequence[str]) -> StoredEpisodes:
    stored = StoredEpisodes()
    for script in scripts:
        play(make(), script, tokenizer, calls=ToolCallsAhead(), stored=stored)
    return stored


def asked(env: Counting, times: int) -> bool:
    return len(env.asked) >= times


def said(episode: Episode) -> list[Any]:
    return [(turn.prompt_ids, turn.completion.token_ids, turn.observation, turn.reward) for turn in episode.turns]


def counts(calls: ToolCallsAhead) -> tuple[int, int, int]:
    return calls.made, calls.used, calls.wasted


SCRIPT = (call("pen"), call("book"), "done")
LONG = (call("pen"), call("book"), call("paper"), "done")


@pytest.mark.parametrize("make", [forking, pure])
def test_a_call_that_does_not_come_is_thrown_away(chatml: Any, make: Callable[[], Counting]) -> None:
    expected, calls, env = play(make(), SCRIPT, chatml), ToolCallsAhead(), make()
    stored = stored_runs(make, chatml, *[(call("penny"), call("books"), "done")] * 2)
    episode = play(env, SCRIPT, chatml, calls=calls, begun=partial(asked, env, 2), stored=stored)
    assert said(episode) == said(expected)
    assert counts(calls) == (2, 0, 2)
    assert sorted(env.asked) == ["book", "books", "pen", "penny"]


@pytest.mark.parametrize("kind", [Counting, type("Heir", (Forkable,), {})])
def test_a_tool_that_says_nothing_of_its_effects_never_runs_ahead(chatml: Any, kind: type[Counting]) -> None:
    """Control: the tool that is declared pure."""
    for make, early in ((kind, 0), (pure, 3)):
        stored, calls, env = stored_runs(make, chatml, LONG, LONG), ToolCallsAhead(), make()
        play(env, ("done",), chatml, calls=calls, begun=partial(asked, env, early), stored=stored)
        assert sorted(env.asked) == ["book", "paper", "pen"][:early]
        assert counts(calls) == (early, 0, early)


def test_the_pure_calls_of_a_turn_run_ahead_beside_impure_ones_that_do_not(chatml: Any) -> None:
    written = []

    def make() -> Counting:
        env = pure()

        def write(text: str) -> str:
            """Write.

            Args:
                text: What
            """
            written.append(len(env.asked))
            return "ok"

        env.tools = (*env.tools, Tool(write))
        return env

    turn = call("pen") + '<tool_call>\n{"name": "write", "arguments": {"text": "pen"}}\n</tool_call>'
    stored, calls, env = stored_runs(make, chatml, *[(turn, "done")] * 2), ToolCallsAhead(), make()
    written.clear()
    episode = play(env, (turn, "done"), chatml, calls=calls, begun=partial(asked, env, 1), stored=stored)
    assert [message.content for message in episode.turns[0].observation] == ["3", "ok"]
    assert (env.asked, written) == (["pen"], [1])
    assert counts(calls) == (1, 1, 0)


def test_a_pure_call_is_used_whatever_else_its_turn_says_and_only_for_the_same_bytes(chatml: Any) -> None:
    env, calls = pure(), ToolCallsAhead()
    stored = stored_runs(pure, chatml, *[(call("pen"), call("\\u00e4 "), "done")] * 2)
    script = (call("pen", "I think "), call("ä"), "done")
    episode = play(env, script, chatml, calls=calls, begun=partial(asked, env, 2), stored=stored)
    assert [turn.observation[0].content for turn in episode.turns[:2]] == ["3", "1"]
    assert counts(calls) == (2, 1, 1)


def test_a_pure_call_that_was_made_ahead_answers_once(chatml: Any) -> None:
    env, script = pure(), (call("pen"), call("pen"), "done")
    stored = stored_runs(pure, chatml, script, script)
    episode = play(env, script, chatml, calls=ToolCallsAhead(), begun=partial(asked, env, 1), stored=stored)
    assert [turn.observation[0].content for turn in episode.turns[:2]] == ["3", "3"]
    assert env.asked == ["pen", "pen"]


def test_tool_calls_ahead_without_stored_episodes_are_refused(chatml: Any) -> None:
    with pytest.raises(ValueError, match=r"pass stored=StoredEpisodes\(\) too"):
        play(pure(), SCRIPT, chatml, calls=ToolCallsAhead())


@pytest.mark.parametrize("believed", [False, True])
def test_a_state_that_changed_meanwhile_makes_the_call_anew(chatml, monkeypatch, believed):
    """Control: trusts the fork, which has not seen the change."""
    script = (call("pen"), "done")
    stored, calls, env = stored_runs(forking, chatml, script, script), ToolCallsAhead(), forking()

    def begun() -> bool:
        if env.asked:
            env.sum = 1000
        return bool(env.asked)

    if believed:
        monkeypatch.setattr(tool_calls_ahead, "same_state", lambda before, here: True)
    episode = play(env, script, chatml, calls=calls, begun=begun, stored=stored)
    assert (episode.reward > 1000) is not believed
    assert counts(calls) == ((1, 1, 0) if believed else (1, 0, 1))


@pytest.mark.parametrize("make", [forking, pure])
@pytest.mark.parametrize("item", ["air", "line"])
def test_an_error_of_the_policy_is_the_calls_answer_and_a_failure_is_tried_again(chatml, make, item):
    script = (call(item), "done")
    stored, calls, env = stored_runs(make, chatml, script, script), ToolCallsAhead(), make()
    env.broken = int(item == "line")
    episode = play(env, script, chatml, calls=calls, begun=partial(asked, env, 1), stored=stored)
    assert not episode.failure
    assert episode.turns[0].observation[0].content == ("Error: not for sale" if item == "air" else "4")
    assert counts(calls) == ((1, 1, 0) if item == "air" else (1, 0, 1))


def test_a_pure_call_has_no_more_time_ahead_than_in_its_turn(chatml: Any) -> None:
    """Control: a deadline that no call misses."""
    deadline = patience(0.1)
    for seconds, answer in ((deadline, "Error: price took longer"), (1000.0, "3")):
        ended: dict[int, str] = {}

        def make(seconds: float = seconds, ended: dict[int, str] = ended) -> Counting:
            env = pure()
            env.executor = ToolExecutor(seconds=seconds)

            def price(item: str) -> int:
                """Ask for a price.

                Args:
                    item: What
                """
                env.asked.append(item)
                time.sleep(1.5 * deadline)
                ended[id(env)] = item
                return len(item)

            env.tools = (Tool(price, pure=True),)
            return env

        script = (call("pen"), "done")
        alone, stored = play(make(), script, chatml), stored_runs(make, chatml, script, script)
        assert [str(turn.observation[0].content)[: len(answer)] for turn in alone.turns[:1]] == [answer]
        calls, env = ToolCallsAhead(), make()
        ended.pop(id(env), None)
        begun = partial(ended.__contains__, id(env))
        ahead = play(env, script, chatml, calls=calls, begun=begun, stored=stored)
        assert said(ahead) == said(alone)
        assert counts(calls) == ((1, 0, 1) if seconds < 1000 else (1, 1, 0))


def test_an_episode_whose_seconds_are_bounded_makes_no_speculative_calls(chatml: Any) -> None:
    for seconds, made in ((1000.0, 0), (None, 1)):

        def make(seconds: float | None = seconds) -> Counting:
            env = pure()
            env.limits = replace(env.limits, max_seconds=seconds)
            return env

        script = (call("pen"), "done")
        calls, env, stored = ToolCallsAhead(), make(), stored_runs(make, chatml, script, script)
        play(env, script, chatml, calls=calls, begun=partial(asked, env, made), stored=stored)
        assert counts(calls)[0] == made


class Till(Toolset):
    # Open from its first call on, or if it is restored open; all copies are counted.

    opened = closed = 0

    def __init__(self) -> None:
        self.open = False

    @tool
    def pay(self, item: str) -> str:
        """Pay.

        Args:
            item: What
        """
        Till.opened += not self.open
        self.open = True
        return item

    def close(self) -> None:
        Till.closed += self.open
        self.open = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        Till.opened += self.open


class Paying(Forkable):
    forkable = True
    toolsets = (Till(),)


def test_what_forks_open_is_closed_whether_they_are_used_or_not(chatml: Any) -> None:
    def pay(item: str) -> str:
        return call(item).replace("price", "pay")

    usual = (pay("a"), pay("b"), pay("c"), "done")
    for script, used in ((usual, 3), ((pay("a"), pay("x"), "done"), 1), (("done",), 0)):
        stored, calls, env = stored_runs(Paying, chatml, usual, usual), ToolCallsAhead(), Paying()
        Till.opened = Till.closed = 0
        assert not play(env, script, chatml, calls=calls, stored=stored).failure
        assert (calls.made, calls.used) == (3, used)
        eventually(lambda: Till.opened == Till.closed)
        assert Till.opened > 0


def test_a_fork_in_the_middle_of_a_step_is_closed_when_that_ends(chatml: Any) -> None:
    gate, closed = threading.Event(), []

    class Held(Forkable):
        forkable = True
        static_attributes = Forkable.static_attributes | {"held", "waited"}
        held = waited = False

        def step(self, action: str) -> Any:
            if self.held and action != "done":
                self.waited = True
                self.asked.append(action)
                assert gate.wait(patience(60))
                closed.append("stepped")
            return super().step(action)

        def close_episode(self) -> None:
            if self.waited:
                closed.append("closed")
            super().close_episode()

    stored, calls, env = stored_runs(Held, chatml, *[(call("pen"), "done")] * 2), ToolCallsAhead(), Held()
    env.held = True
    play(env, ("done",), chatml, calls=calls, begun=partial(asked, env, 1), stored=stored)
    assert (counts(calls), closed) == ((1, 0, 1), [])
    gate.set()
    eventually(lambda: closed == ["stepped", "closed"])


@pytest.mark.parametrize("make", [forking, pure])
def test_one_thread_for_all_is_enough(chatml: Any, make: Callable[[], Counting]) -> None:
    stored = stored_runs(make, chatml, LONG, LONG)
    with ThreadPoolExecutor(1) as alone:
        episode = play(make(), SCRIPT, chatml, calls=ToolCallsAhead(), executor=alone, stored=stored)
    assert not episode.failure
    assert said(episode) == said(play(make(), SCRIPT, chatml))


def test_of_a_turn_no_more_pure_calls_run_ahead_than_the_episode_may_make(chatml: Any) -> None:
    env, calls = pure(), ToolCallsAhead()
    script = (call("pen"), "".join(map(call, ("a", "bb", "ccc", "dddd"))))
    begun = partial(asked, env, 4)
    episode = play(env, script, chatml, calls=calls, begun=begun, stored=stored_runs(pure, chatml, script, script))
    assert len(episode.turns[1].observation) == 2
    assert sorted(env.asked) == ["a", "bb", "ccc", "pen"]
    assert counts(calls) == (4, 3, 1)


@pytest.mark.parametrize("make", [forking, pure])
def test_the_calls_of_several_turns_are_made_before_the_first_is_sampled(chatml, make):
    """Control: a store without episodes of the task."""
    expected = said(play(make(), LONG, chatml))
    for stored, early in ((stored_runs(make, chatml, LONG, LONG), 3), (StoredEpisodes(), 0)):
        calls, env = ToolCallsAhead(), make()
        seen = []

        def begun(env: Counting = env, seen: list[int] = seen) -> bool:
            seen.append(len(env.asked))
            return len(env.asked) == 3 or len(seen) > 200

        episode = play(env, LONG, chatml, calls=calls, begun=begun, stored=stored)
        assert said(episode) == expected
        assert seen[-1] == early
        assert sorted(env.asked) == ["book", "paper", "pen"]
        assert counts(calls) == (early, early, 0)
        assert (calls.saved_seconds > 0) == bool(early)
        assert [m.content for m in env.messages] == [m.content for m in episode.messages]


@pytest.mark.parametrize("make", [forking, pure])
def test_what_follows_a_turn_that_came_otherwise_is_not_answered_by_stored_episodes(chatml, make):
    # A fork of the old state is no answer; a pure call is the same in any state.
    script = (call("pen"), call("ink", "or "), call("paper"), "done")
    calls, env = ToolCallsAhead(), make()
    expected = said(play(make(), script, chatml))
    begun = partial(asked, env, 3)
    episode = play(env, script, chatml, calls=calls, begun=begun, stored=stored_runs(make, chatml, LONG, LONG))
    assert said(episode) == expected
    assert counts(calls) == ((3, 1, 2) if make is forking else (3, 2, 1))


@pytest.mark.parametrize("make", [forking, pure])
def test_improbable_calls_are_not_made(chatml: Any, make: Callable[[], Counting]) -> None:
    """Control: a lower threshold."""
    ways = [(call("pen"), call(item), "done") for item in ("book", "paper", "ink")]
    for bound, made in ((0.5, 1), (0.2, 2 if make is forking else 4)):
        calls, env, stored = ToolCallsAhead(min_probability=bound), make(), stored_runs(make, chatml, *ways)
        begun = partial(asked, env, made)
        play(env, (call("pen"), "done"), chatml, calls=calls, begun=begun, stored=stored)
        assert counts(calls) == (made, 1, made - 1)


@pytest.mark.parametrize("make", [forking, pure])
def test_forecasts_that_are_wrong_end_with_their_credit(chatml: Any, make: Callable[[], Counting]) -> None:
    credit = Credit(4.0)
    calls, stored = ToolCallsAhead(credit=credit), stored_runs(make, chatml, *[LONG] * 16)
    episodes = 0
    while episodes < 8 or (calls.wasted < 4 and episodes < 100):  # a pure call that found no thread costs no credit
        play(make(), ("done",), chatml, calls=calls, stored=stored)
        episodes += 1
    for _ in range(8):
        play(make(), ("done",), chatml, calls=calls, stored=stored)
    assert calls.used == 0
    assert 4 <= calls.wasted <= 4 + (episodes + 8) / 8
    while calls.used <= calls.wasted and episodes < 100:
        play(make(), LONG, chatml, calls=calls, stored=stored)
        episodes += 1
    assert calls.used > calls.wasted, "what comes earns credit"


@pytest.mark.parametrize("make", [forking, pure])
def test_without_a_bound_wrong_forecasts_would_go_on(chatml: Any, make: Callable[[], Counting]) -> None:
    calls, stored = ToolCallsAhead(credit=Credit(math.inf)), stored_runs(make, chatml, *[LONG] * 16)
    for episodes in range(1, 100):
        play(make(), ("done",), chatml, calls=calls, stored=stored)
        if calls.wasted > 4 + (episodes + 8) / 8:
            return
    pytest.fail(f"{calls.wasted} calls in 99 episodes")


def test_a_fork_that_takes_a_turn_without_calls_costs_credit_too(chatml: Any) -> None:
    for last, earned in (("words", 2), ("other", 0)):
        calls, stored = ToolCallsAhead(credit=Credit(4.0)), stored_runs(forking, chatml, *[(call("pen"), "words")] * 8)
        for _ in range(4):
            play(forking(), (call("pen"), last), chatml, calls=calls, stored=stored)
        assert (counts(calls), calls.credit.calls) == ((4, 4, 0), 4.0 + 4 * (earned + 1 / 8))


def test_states_are_the_same_whichever_texts_are_one_object() -> None:
    one = "".join(["a", "b"])
    shared, apart, other = (pickle.dumps(texts) for texts in ((one, one), (one, "".join(["a", "b"])), (one, "ac")))
    assert shared != apart
    assert same_state(shared, apart)
    assert not same_state(shared, other)
    mine: list[int] = []
    assert not same_state(pickle.dumps((mine, mine)), pickle.dumps((mine, [])))
