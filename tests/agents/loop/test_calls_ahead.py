"""Calls of turns that are not sampled yet: made where they leave no trace, used where the turn is the foreseen."""

import asyncio
import math
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from turntree.agents.engines.protocol import Completion, TurnRequest
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop import calls_ahead
from turntree.agents.loop.calls_ahead import CallsAhead, Credit, same_state
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.loop.stored_episodes import StoredEpisodes
from turntree.envs import Env, Limits, Message, Reply, Task, Tool, ToolError


def call(item: str, words: str = "") -> str:
    return f'{words}<tool_call>\n{{"name": "price", "arguments": {{"item": "{item}"}}}}\n</tool_call>'


class Counting(Env):
    """Names prices, and counts what its tool was asked, in all copies; the length of what was said is its state."""

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
    """Its count is of no concern to an episode."""

    forkable = True


def forking() -> Forkable:
    return Forkable()


def pure() -> Counting:
    return Counting(pure=True)


class Telling(ScriptedEngine):
    """Tells texts before it answers, and waits until what they begin has begun."""

    def __init__(
        self, script: Sequence[str], told: Sequence[Sequence[str]], tokenizer: Any, begun: Callable[[], bool]
    ) -> None:
        super().__init__(script, tokenizer)
        self._told, self._encode, self._begun = list(told), tokenizer, begun
        self.wished: list[bool] = []

    async def generate(self, request: TurnRequest) -> Completion:
        """The next text."""
        place = len(self.wished)
        self.wished.append(request.foresee is not None)
        if request.foresee is not None and place < len(self._told):
            for text in self._told[place]:
                tokens = self._encode(text, add_special_tokens=False)["input_ids"]
                request.foresee.tell((*tokens, *request.sampling.stop_token_ids[:1]))
            for _ in range(30_000):
                await asyncio.sleep(0.001)
                if self._begun():
                    break
        return await super().generate(request)


def play(
    env: Counting,
    script: Sequence[str],
    told: Sequence[Sequence[str]],
    tokenizer: Any,
    *,
    calls: CallsAhead | None = None,
    begun: Callable[[], bool] | None = None,
    executor: Executor | None = None,
    stored: StoredEpisodes | None = None,
) -> Episode:
    engine = Telling(script, told, tokenizer, begun or (lambda: bool(env.asked)))
    roll = rollout(
        env, engine, Renderer(tokenizer), index=0, seed=0, calls_ahead=calls, executor=executor, stored=stored
    )
    return asyncio.run(roll)


def said(episode: Episode) -> list[Any]:
    return [(turn.prompt_ids, turn.completion.token_ids, turn.observation, turn.reward) for turn in episode.turns]


def counts(calls: CallsAhead) -> tuple[int, int, int]:
    return calls.made, calls.used, calls.wasted


SCRIPT = (call("pen"), call("book"), "done")


@pytest.mark.parametrize("make", [forking, pure])
def test_a_call_that_was_foreseen_is_made_once_while_its_turn_is_sampled(chatml, make):
    expected, calls, env = play(make(), SCRIPT, (), chatml), CallsAhead(), make()
    told = ((call("pen"),), (call("book"),))
    begun = iter((1, 2))
    at = {"need": next(begun)}

    def has_begun() -> bool:
        if len(env.asked) >= at["need"]:
            at["need"] = next(begun, 2)
            return True
        return False

    episode = play(env, SCRIPT, told, chatml, calls=calls, begun=has_begun)
    assert said(episode) == said(expected)
    assert env.asked == ["pen", "book"]
    assert counts(calls) == (2, 2, 0)
    assert calls.saved_seconds > 0
    assert [m.content for m in env.messages] == [m.content for m in episode.messages], "it is where the episode is"


def last_asked(env: Counting, *items: str) -> bool:
    return env.asked[-1:] in [[item] for item in items]


@pytest.mark.parametrize("make", [forking, pure])
def test_a_call_that_does_not_come_is_thrown_away(chatml: Any, make: Callable[[], Counting]) -> None:
    expected, calls, env = play(make(), SCRIPT, (), chatml), CallsAhead(), make()
    told = ((call("penny"),), (call("books"),))
    begun = partial(last_asked, env, "penny", "books")
    episode = play(env, SCRIPT, told, chatml, calls=calls, begun=begun)
    assert said(episode) == said(expected)
    assert counts(calls) == (2, 0, 2)
    assert sorted(env.asked) == ["book", "books", "pen", "penny"]


@pytest.mark.parametrize("make", [forking, pure])
def test_of_several_that_were_foreseen_the_one_that_came_counts(chatml: Any, make: Callable[[], Counting]) -> None:
    """Each told turn takes the place of the one before; a pure call that was made is not made again."""
    expected, calls, env = play(make(), SCRIPT, (), chatml), CallsAhead(), make()
    told = ((call("nib"), call("nib"), call("pen"), "no call"), ("<tool_call>no JSON</tool_call>",))
    episode = play(env, SCRIPT, told, chatml, calls=calls, begun=lambda: "pen" in env.asked)
    assert said(episode) == said(expected)
    assert counts(calls) == (2, 1, 1)
    assert sorted(item for item in env.asked if item != "nib") == ["book", "pen"]


@pytest.mark.parametrize("kind", [Counting, type("Heir", (Forkable,), {})])
def test_a_tool_that_says_nothing_of_its_effects_never_runs_ahead(chatml: Any, kind: type[Counting]) -> None:
    """Neither is forkable: that is never inherited. The control is the tool that says that it is pure."""
    calls, env = CallsAhead(), kind()
    engine = Telling(SCRIPT, ((call("penny"), call("pen")),) * 2, chatml, lambda: False)
    episode = asyncio.run(rollout(env, engine, Renderer(chatml), index=0, calls_ahead=calls))
    assert not episode.failure
    assert env.asked == ["pen", "book"]
    assert counts(calls) == (0, 0, 0)
    assert engine.wished == [False] * 3
    control = pure()
    play(control, SCRIPT, ((call("penny"),),), chatml, calls=calls)
    assert control.asked[0] == "penny"
    stored, calls, env = past(kind, chatml, LONG, LONG), CallsAhead(), kind()
    play(env, ("done",), (), chatml, calls=calls, stored=stored)
    assert (env.asked, counts(calls)) == ([], (0, 0, 0))


def test_the_pure_calls_of_a_turn_run_ahead_beside_impure_ones_that_do_not(chatml: Any) -> None:
    env, written = pure(), []

    def write(text: str) -> str:
        """Write.

        Args:
            text: What
        """
        written.append(len(env.asked))
        return "ok"

    env.tools = (*env.tools, Tool(write))
    turn = call("pen") + '<tool_call>\n{"name": "write", "arguments": {"text": "pen"}}\n</tool_call>'
    calls = CallsAhead()
    episode = play(env, (turn, "done"), ((turn,),), chatml, calls=calls)
    assert [message.content for message in episode.turns[0].observation] == ["3", "ok"]
    assert (env.asked, written) == (["pen"], [1])
    assert counts(calls) == (1, 1, 0)


def test_a_pure_call_is_used_whatever_else_its_turn_says_and_only_for_the_same_bytes(chatml: Any) -> None:
    env, calls = pure(), CallsAhead()
    script = (call("pen", "I think "), call("ä"), "done")
    told = ((call("pen"),), (call("\\u00e4 "),))
    episode = play(env, script, told, chatml, calls=calls, begun=lambda: len(env.asked) in (1, 2))
    assert [turn.observation[0].content for turn in episode.turns[:2]] == ["3", "1"]
    assert counts(calls) == (2, 1, 1)
    env, calls = pure(), CallsAhead()
    episode = play(env, (call("book"), call("pen"), "done"), ((call("pen"),),), chatml, calls=calls)
    assert not episode.failure
    assert env.asked.count("pen") == 2
    assert counts(calls) == (1, 0, 1)


@pytest.mark.parametrize("believed", [False, True])
def test_a_state_that_changed_meanwhile_makes_the_call_anew(chatml, monkeypatch, believed):
    """The control believes the fork, which has not seen the change."""
    env, calls = forking(), CallsAhead()

    def begun() -> bool:
        if env.asked:
            env.sum = 1000
        return bool(env.asked)

    if believed:
        monkeypatch.setattr(calls_ahead, "same_state", lambda before, here: True)
    episode = play(env, (call("pen"), "done"), ((call("pen"),),), chatml, calls=calls, begun=begun)
    assert (episode.reward > 1000) is not believed
    assert counts(calls) == ((1, 1, 0) if believed else (1, 0, 1))


@pytest.mark.parametrize("make", [forking, pure])
@pytest.mark.parametrize("item", ["air", "line"])
def test_an_error_of_the_policy_is_the_calls_answer_and_a_failure_is_tried_again(chatml, make, item):
    env, calls = make(), CallsAhead()
    env.broken = int(item == "line")
    episode = play(env, (call(item), "done"), ((call(item),),), chatml, calls=calls)
    assert not episode.failure
    assert episode.turns[0].observation[0].content == ("Error: not for sale" if item == "air" else "4")
    assert counts(calls) == ((1, 1, 0) if item == "air" else (1, 0, 1))


@pytest.mark.parametrize("make", [forking, pure])
def test_one_thread_for_all_is_enough(chatml: Any, make: Callable[[], Counting]) -> None:
    """The step waits for no call that waits for its thread."""
    told = ((call("penny"), call("pen")), (call("book"),))
    with ThreadPoolExecutor(1) as alone:
        episode = play(make(), SCRIPT, told, chatml, calls=CallsAhead(), begun=lambda: True, executor=alone)
    assert not episode.failure
    assert said(episode) == said(play(make(), SCRIPT, (), chatml))


def test_no_more_pure_calls_run_ahead_than_the_episode_may_make(chatml: Any) -> None:
    env, calls = pure(), CallsAhead()
    turn = "".join(map(call, ("a", "bb", "ccc", "dddd")))
    episode = play(env, (turn,), ((turn,),), chatml, calls=calls, begun=lambda: len(env.asked) == 3)
    assert len(episode.turns[0].observation) == 3
    assert sorted(env.asked) == ["a", "bb", "ccc"]
    assert counts(calls) == (3, 3, 0)


def test_what_is_told_too_late_begins_nothing(chatml: Any) -> None:
    late: list[Callable[[], None]] = []

    class Late(Telling):
        async def generate(self, request: TurnRequest) -> Completion:
            for tell in late:
                tell()
            done = await ScriptedEngine.generate(self, request)
            assert request.foresee is not None
            wish, tokens = request.foresee, done.token_ids
            late.append(lambda: wish.tell(tokens))
            return done

    env, calls = forking(), CallsAhead()
    engine = Late(SCRIPT, (), chatml, lambda: True)
    asyncio.run(rollout(env, engine, Renderer(chatml), index=0, calls_ahead=calls))
    assert (env.asked, counts(calls)) == (["pen", "book"], (0, 0, 0))


def past(make: Callable[[], Counting], tokenizer: Any, *scripts: Sequence[str]) -> StoredEpisodes:
    """Episodes of other samples of the task."""
    stored = StoredEpisodes()
    for script in scripts:
        play(make(), script, (), tokenizer, calls=CallsAhead(), stored=stored)
    return stored


def asked(env: Counting, times: int) -> bool:
    return len(env.asked) >= times


LONG = (call("pen"), call("book"), call("paper"), "done")


@pytest.mark.parametrize("make", [forking, pure])
def test_the_calls_of_several_turns_are_made_before_the_first_is_sampled(chatml, make):
    """The control, whose store has no episode of the task, makes none before its turn."""
    expected = said(play(make(), LONG, (), chatml))
    for stored, early in ((past(make, chatml, LONG, LONG), 3), (StoredEpisodes(), 0)):
        calls, env = CallsAhead(), make()
        seen = []

        def begun(env: Counting = env, seen: list[int] = seen) -> bool:
            seen.append(len(env.asked))
            return len(env.asked) == 3 or len(seen) > 200

        episode = play(env, LONG, ((),), chatml, calls=calls, begun=begun, stored=stored)
        assert said(episode) == expected
        assert seen[-1] == early
        assert sorted(env.asked) == ["book", "paper", "pen"]
        assert counts(calls) == (early, early, 0)
        assert [m.content for m in env.messages] == [m.content for m in episode.messages]


@pytest.mark.parametrize("make", [forking, pure])
def test_what_follows_a_turn_that_came_otherwise_is_not_answered_by_the_past(chatml, make):
    """The last call comes in another state: a fork of the old one is no answer; a pure call is the same anywhere."""
    script = (call("pen"), call("ink", "or "), call("paper"), "done")
    calls, env = CallsAhead(), make()
    expected = said(play(make(), script, (), chatml))
    begun = partial(asked, env, 3)
    episode = play(env, script, ((),), chatml, calls=calls, begun=begun, stored=past(make, chatml, LONG, LONG))
    assert said(episode) == expected
    assert counts(calls) == ((3, 1, 2) if make is forking else (3, 2, 1))


@pytest.mark.parametrize("make", [forking, pure])
def test_no_call_is_made_whose_way_is_improbable(chatml: Any, make: Callable[[], Counting]) -> None:
    """Of three episodes that began alike two went on to another call each; the control has a lower bound."""
    ways = [(call("pen"), call(item), "done") for item in ("book", "paper", "ink")]
    for bound, made in ((0.5, 1), (0.2, 2 if make is forking else 4)):
        calls, env, stored = CallsAhead(min_probability=bound), make(), past(make, chatml, *ways)
        begun = partial(asked, env, made)
        play(env, (call("pen"), "done"), ((),), chatml, calls=calls, begun=begun, stored=stored)
        assert counts(calls) == (made, 1, made - 1)


@pytest.mark.parametrize("make", [forking, pure])
def test_forecasts_that_are_wrong_end_with_their_credit(chatml: Any, make: Callable[[], Counting]) -> None:
    """In each episode all that is foreseen is wrong: then no more is made than the credit and one in eight episodes."""
    credit = Credit(4.0)
    calls, stored = CallsAhead(credit=credit), past(make, chatml, *[LONG] * 16)
    episodes = 0
    while episodes < 8 or (calls.wasted < 4 and episodes < 100):  # a pure call that found no thread costs no credit
        play(make(), ("done",), (), chatml, calls=calls, stored=stored)
        episodes += 1
    for _ in range(8):
        play(make(), ("done",), (), chatml, calls=calls, stored=stored)
    assert calls.used == 0
    assert 4 <= calls.wasted <= 4 + (episodes + 8) / 8
    while calls.used <= calls.wasted and episodes < 100:
        play(make(), LONG, (), chatml, calls=calls, stored=stored)
        episodes += 1
    assert calls.used > calls.wasted, "what comes earns credit"


@pytest.mark.parametrize("make", [forking, pure])
def test_without_a_bound_wrong_forecasts_would_go_on(chatml: Any, make: Callable[[], Counting]) -> None:
    calls, stored = CallsAhead(credit=Credit(math.inf)), past(make, chatml, *[LONG] * 16)
    for episodes in range(1, 100):
        play(make(), ("done",), (), chatml, calls=calls, stored=stored)
        if calls.wasted > 4 + (episodes + 8) / 8:
            return
    pytest.fail(f"{calls.wasted} calls in 99 episodes")


def test_a_fork_that_takes_a_turn_without_calls_costs_credit_too(chatml: Any) -> None:
    """And earns it, if it comes, as the call before it does."""
    for last, earned in (("words", 2), ("other", 0)):
        calls, stored = CallsAhead(credit=Credit(4.0)), past(forking, chatml, *[(call("pen"), "words")] * 8)
        for _ in range(4):
            play(forking(), (call("pen"), last), (), chatml, calls=calls, stored=stored)
        assert (counts(calls), calls.credit.calls) == ((4, 4, 0), 4.0 + 4 * (earned + 1 / 8))


def test_states_are_the_same_whichever_texts_are_one_object() -> None:
    one = "".join(["a", "b"])
    shared, apart, other = (pickle.dumps(texts) for texts in ((one, one), (one, "".join(["a", "b"])), (one, "ac")))
    assert shared != apart
    assert same_state(shared, apart)
    assert not same_state(shared, other)
    mine: list[int] = []
    assert not same_state(pickle.dumps((mine, mine)), pickle.dumps((mine, [])))
