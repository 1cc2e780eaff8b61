import json
import pickle
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from playing import made_up, play
from tables import table

from turntree.envs import Env, Limits, Message, Reply, Role, Task, ToolCall
from turntree.envs.errors import OptionsError, ResetNeeded, SnapshotError, TaskIndexError, ToolError, UnknownParser

INFO_KEYS = {
    *("messages", "history", "tools", "tool_calls", "task_id", "turn", "rewards"),
    *("parse_error", "stop_reason", "failure", "failure_kind"),
}


class Shop(Env):
    num_tasks = 5

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.basket: list[str] = []

    def task(self, index: int) -> Task:
        return Task(id=f"shop/{index}", prompt=f"Buy item {index}.", answer=str(index))

    def start(self, task: Task) -> list[Message]:
        self.basket = []
        return [*super().start(task), Message(role=Role.USER, content=f"Luck: {self.np_random.integers(1000)}")]

    def default_system_prompt(self) -> str:
        return "This is a shop."

    @made_up
    def take(self, item: str) -> str:
        if item == "nothing":
            raise ToolError("there is no such item")
        if item == "bomb":
            raise OSError("the shop\nexploded")
        self.basket.append(item)
        return f"{len(self.basket)} in the basket"

    def reply(self, message: Message) -> Reply:
        if message.content == "steal":
            raise RuntimeError("alarm")
        if message.content == "nonsense":
            return "no Reply"  # type: ignore[return-value]
        if message.content == "infinite":
            return Reply(reward=float("inf"))
        if message.content == "haggle":
            luck = int(self.np_random.integers(1000))
            return Reply(messages=[Message(role=Role.USER, content=f"No. {luck}")], reward=-0.5, rewards={"talk": 1})
        bought = self.current_task.answer in self.basket
        return Reply(reward=float(bought), done=True, rewards={"bought": bought})


def call(*items: str) -> str:
    return "".join(
        f'<tool_call>{{"name": "take", "arguments": {{"item": {json.dumps(item)}}}}}</tool_call>' for item in items
    )


@pytest.fixture
def env() -> Shop:
    return Shop()


class TestReset:
    def test_the_opening_is_the_system_prompt_and_what_start_says_and_the_seed_decides_the_task(self) -> None:
        text, info = Shop().reset(seed=1, options={"index": 3})
        assert text.startswith("This is a shop.\n\nBuy item 3.\n\nLuck: ")
        assert [message["role"] for message in info["messages"]] == ["system", "user", "user"]
        assert (info["task_id"], info["turn"]) == ("shop/3", 0)
        drawn = [Shop().reset(seed=seed)[1]["task_id"] for seed in range(30)]
        assert drawn == [Shop().reset(seed=seed)[1]["task_id"] for seed in range(30)]
        assert set(drawn) == {f"shop/{i}" for i in range(5)}

    @pytest.mark.parametrize(("given", "roles"), [("Hello.", ["system", "user", "user"]), ("", ["user", "user"])])
    def test_the_system_prompt_can_be_replaced_or_left_out(self, given: str, roles: list[str]) -> None:
        _, info = Shop(system_prompt=given).reset(seed=1)
        assert [message["role"] for message in info["messages"]] == roles
        assert not given or info["messages"][0]["content"] == given

    def test_a_task_can_be_given_itself_or_by_an_index_of_any_kind(self, env: Shop) -> None:
        task = Task(id="mine", prompt="Buy a hat.", answer="hat")
        assert env.reset(options={"task": task})[1]["task_id"] == "mine"
        assert env.current_task is task
        assert env.reset(options={"index": np.int64(2)})[1]["task_id"] == "shop/2"

    @pytest.mark.parametrize(("options", "complaint"), table(__file__, "wrong_options"))
    def test_wrong_options_raise(self, options: dict[str, Any], complaint: str) -> None:
        with pytest.raises(OptionsError, match=complaint):
            Shop().reset(options=options)

    @pytest.mark.parametrize("index", [-1, 5])
    def test_an_index_without_a_task_raises(self, index: int) -> None:
        with pytest.raises(TaskIndexError, match=f"5 tasks.*got {index}"):
            Shop().reset(options={"index": index})

    def test_a_failed_reset_does_not_leave_the_old_episode_running(self, env: Shop) -> None:
        env.reset(seed=1)
        with pytest.raises(OptionsError):
            env.reset(options={"index": "x"})
        with pytest.raises(ResetNeeded):
            env.step("buy")


class Forgetful(Shop):
    def __init__(self, left: Any = None) -> None:
        super().__init__(system_prompt="")
        self.left = left

    def compact(self) -> Any:
        seen = len(self.dialogue)
        if seen < 5:
            return None
        return [Message(role=Role.USER, content=f"left of {seen - 1} messages")] if self.left is None else self.left


class TestStep:
    def test_calls_are_answered_in_order_by_tool_messages_and_the_episode_goes_on(self, env: Shop) -> None:
        [(text, reward, terminated, truncated, info)] = play(Shop(), [call("3")], 3)
        assert (text, reward, terminated, truncated) == ("1 in the basket", 0.0, False, False)
        assert info["messages"] == [{"role": "tool", "content": "1 in the basket", "name": "take"}]
        assert info["tool_calls"] == [ToolCall(name="take", arguments={"item": "3"}).to_openai()]
        assert (info["turn"], info["stop_reason"]) == (1, "")
        [(text, *_, info)] = play(env, [call("a", "nothing", "b")])
        assert env.basket == ["a", "b"]
        assert text == "1 in the basket\n\nError: there is no such item\n\n2 in the basket"
        assert len(info["messages"]) == 3

    def test_reward_components_are_summed_and_a_malformed_call_is_told_and_costs_a_turn(self) -> None:
        steps = play(Shop(), ["haggle", "haggle", "buy"])
        assert [step[1] for step in steps] == [-0.5, -0.5, 0.0]
        assert steps[-1][4]["rewards"] == {"talk": 2.0, "bought": 0.0}
        [(text, reward, terminated, truncated, info)] = play(Shop(), ["<tool_call>{take}</tool_call>"])
        assert text.startswith("Error: malformed tool call")
        assert info["messages"][0]["role"] == "tool"
        assert (reward, terminated, truncated, info["turn"], info["tool_calls"]) == (0.0, False, False, 1, [])

    def test_infos_always_have_the_same_keys_and_what_is_done_to_one_ends_with_its_episode(self, env: Shop) -> None:
        infos = [env.reset(seed=1)[1], *(step[4] for step in play(env, [call("x"), "haggle", call("bomb")]))]
        assert [set(info) for info in infos] == [INFO_KEYS] * 4
        env.reset(seed=1)[1]["tools"].clear()
        tools = env.step("haggle")[4]["tools"]
        assert tools[0]["function"]["name"] == "take"
        tools[0].clear()
        assert env.reset(seed=1)[1]["tools"][0]["function"]["name"] == "take"

    def test_the_dialogue_can_be_read_back_and_is_rendered(self) -> None:
        env = Shop(render_mode="ansi")
        play(env, [call("3"), "buy"], 3)
        roles = [message.role for message in env.messages]
        assert roles == ["system", "user", "user", "assistant", "tool", "assistant"]
        assert env.messages[3].content == call("3")
        assert env.messages[3].tool_calls[0].name == "take"
        rendered = env.render()
        assert rendered.startswith("[system] This is a shop.\n\n[user] Buy item 3.")
        assert rendered.endswith("[tool] 1 in the basket\n\n[assistant] buy")

    def test_a_dialogue_that_was_shortened_goes_on_from_what_is_left_and_is_kept_whole(self) -> None:
        env = Forgetful()
        steps = play(env, [call("1"), call("2"), "haggle", "buy"], 2)
        histories = [[message["content"] for message in step[4]["history"]] for step in steps]
        assert histories == [[], ["left of 5 messages"], [], []]
        assert [message.content for message in env.dialogue][:2] == ["left of 5 messages", "haggle"]
        assert len(env.messages) == 9, "opening, four turns, three answers"
        env.reset(seed=2)
        assert env.dialogue == env.messages
        copied = Forgetful()
        play(env, [call("1"), call("2")], 2)
        copied.restore(env.snapshot())
        assert copied.dialogue == env.dialogue == (Message(role=Role.USER, content="left of 5 messages"),)

    @pytest.mark.parametrize("left", [[], ["text"]])
    def test_a_history_of_something_else_is_a_failure_of_the_environment(self, left: Any) -> None:
        env = Forgetful(left)
        steps = play(env, [call("1"), call("2")], 2)
        assert "compact() must return None or at least one Message" in steps[-1][4]["failure"]
        assert steps[-1][4]["failure_kind"] == "environment"

    def test_stepping_before_reset_after_the_end_or_with_no_text_raises(self, env: Shop) -> None:
        with pytest.raises(ResetNeeded, match="call reset"):
            env.step("buy")
        play(env, ["buy"])
        with pytest.raises(ResetNeeded, match="ended \\(done\\)"):
            env.step("buy")
        env.reset(seed=1)
        with pytest.raises(TypeError, match="text of one turn, got int"):
            env.step(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "turns", "end"), [*table(__file__, "limits"), ({"max_turns": None}, ["haggle"] * 50, [False, False, ""])]
)
def test_a_limit_truncates_what_the_task_has_not_decided_by_then(limits: dict, turns: list, end: list) -> None:
    env = Shop(limits=Limits(**limits))
    *before, (text, _, *ended, info) = play(env, [turn if isinstance(turn, str) else call(*turn) for turn in turns])
    assert [*ended, info["stop_reason"]] == end
    assert {(*step[2:4], step[4]["stop_reason"]) for step in before} <= {(False, False, "")}
    if end[2] == "max_turns":
        assert text == "1 in the basket"  # the last turn is answered
    if end[2] == "max_tool_calls":
        assert env.basket == ["a", "b", "c"]  # the call beyond is not run


class TestFailure:
    @pytest.mark.parametrize(("action", "failure"), table(__file__, "failures"))
    def test_a_failure_of_the_infrastructure_truncates_with_one_line_until_the_reset(self, action, failure):
        env = Shop()
        [(text, reward, terminated, truncated, info)] = play(
            env, [action if isinstance(action, str) else call(*action)]
        )
        assert (text, reward, terminated, truncated) == ("", 0.0, False, True)
        assert (info["stop_reason"], info["failure"]) == ("failure", failure)
        *_, (_, reward, _, _, info) = play(env, [call("3"), "buy"], 3)
        assert (reward, info["failure"]) == (1.0, "")

    def test_what_the_model_did_wrong_is_no_failure_nor_is_an_interrupt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = play(Shop(), [call("nothing"), '<tool_call>{"name": "take", "arguments": {"item": 3}}</tool_call>'])
        assert [step[4]["stop_reason"] for step in steps] == ["", ""]
        assert steps[1][0] == "Error: argument 'item' of take must be of type string, got 3"
        monkeypatch.setattr(Shop, "reply", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            play(Shop(), ["buy"])


class TestSnapshot:
    def test_a_restored_episode_goes_on_as_the_original_did_here_and_elsewhere(self) -> None:
        env, other, turns = Shop(), Shop(), [call("b"), "haggle", "haggle", "buy"]
        play(env, [call("3"), "haggle"], 3)
        state, seen = env.snapshot(), env.messages
        after = [env.step(turn) for turn in turns]
        assert after[1][0] != after[2][0]  # what was drawn is told apart
        env.reset(seed=99)
        env.coupon = "10 % off"  # type: ignore[attr-defined]
        for restored in (env, other):
            restored.restore(state)
            assert (restored.basket, restored.messages) == (["3"], seen)
            assert not hasattr(restored, "coupon")
            assert [restored.step(turn) for turn in turns] == after

    @pytest.mark.parametrize("state", [b"", b"nonsense", pickle.dumps(3)])
    def test_other_bytes_are_refused(self, state: bytes) -> None:
        with pytest.raises(SnapshotError, match="expected the bytes of snapshot"):
            Shop().restore(state)

    def test_a_snapshot_of_another_class_is_refused(self) -> None:
        class Market(Shop):
            pass

        with pytest.raises(SnapshotError, match=r"expected a snapshot of .*Market, got one of Shop"):
            Market().restore(Shop().snapshot())


def test_unknown_modes_and_formats_what_is_no_message_and_half_an_environment_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="render_mode must be 'ansi' or None, got 'human'"):
        Shop(render_mode="human")
    with pytest.raises(UnknownParser, match="did you mean 'compact'"):
        Shop(tool_format="compct")

    class Half(Env):
        def reply(self, message: Message) -> Reply:
            return Reply(done=True)

    with pytest.raises(TypeError, match="task"):
        Half()  # type: ignore[abstract]
    with pytest.raises(TypeError, match="must hold Message objects, got 'hello'"):
        Reply(messages=["hello"])  # type: ignore[list-item]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rewards_must_be_finite(value: float) -> None:
    with pytest.raises(ValueError, match="reward 'reward' must be a finite number"):
        Reply(reward=value)
    with pytest.raises(ValueError, match="reward 'style' must be a finite number"):
        Reply(rewards={"style": value})


def test_what_a_subclass_adds_may_block() -> None:
    class Quick(Shop):
        step_inline = True

    class Slower(Quick):
        pass

    assert (Shop.step_inline, Quick.step_inline, Slower.step_inline) == (False, True, False)
