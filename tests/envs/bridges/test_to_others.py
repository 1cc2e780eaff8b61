import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from playing import Errand, call, use

from turntree.envs import Env, Message, Reply, Task, ToolError, make, tool
from turntree.envs.bridges.failure import EpisodeFailure
from turntree.envs.bridges.mcp import McpTools, serve
from turntree.envs.bridges.torchtitan import torchtitan_environment
from turntree.envs.bridges.trl import trl_environment, trl_reward
from turntree.envs.math.calculator import calculator


class Shop(Env):
    @tool
    def price(self, item: str, count: int = 1) -> int:
        """Ask for a price.

        Args:
            item: What
            count: How many
        """
        if item == "air":
            raise ToolError("not for sale")
        if item == "bomb":
            raise OSError("gone")
        return len(item) * count

    def task(self, index: int) -> Task:
        return Task(id=str(index), prompt=f"What do {index} pens cost?", answer=str(4 * index))

    def reply(self, message: Message) -> Reply:
        return Reply(reward=float(message.content == self.current_task.answer), done=True)


class TestTRL:
    def begin(self, index: int = 3) -> Any:
        env = trl_environment(Shop)()
        assert env.reset(index=index, other="column") == f"What do {index} pens cost?"
        return env

    def test_its_methods_are_the_tools(self) -> None:
        env = self.begin()
        assert env.price(item="pens", count=2) == "8"
        assert env.price(item="air") == "Error: not for sale"

    def test_the_reward_function_gives_the_answer_to_the_environment(self) -> None:
        right, wrong, failed = (self.begin() for _ in range(3))
        failed.price(item="bomb")
        assert failed.price(item="pens") == "Error: the episode has ended"
        completions = [[{"role": "assistant", "content": "12"}], [{"role": "assistant", "content": "11"}], "12"]
        assert trl_reward(completions, environments=[right, wrong, failed]) == [1.0, 0.0, None]

    def test_transformers_reads_the_same_schema_from_the_method(self) -> None:
        utils = pytest.importorskip("transformers.utils", reason="TRL describes tools with it")
        assert utils.get_json_schema(self.begin().price) == Shop.tools[0].schema

    def test_trl_which_takes_every_public_method_for_a_tool_finds_no_other(self) -> None:
        members = dict(inspect.getmembers(trl_environment(Shop), predicate=inspect.isfunction))
        assert {name for name in members if not name.startswith("_")} == {"reset", "price"}


class TestTorchtitan:
    @pytest.fixture
    def environment(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        name = "torchtitan.experiments.rl.environment.message"
        try:
            __import__(name)
        except ImportError:  # the interface as published, for want of the library
            module: Any = ModuleType(name)

            @dataclass(kw_only=True)
            class MessageEnvInitOutput:
                init_prompt_messages: list[Any]
                tools: list[Any] = field(default_factory=list)

            @dataclass(kw_only=True)
            class MessageEnvStepOutput:
                env_messages: list[Any] = field(default_factory=list)
                done: bool = False
                env_rewards: dict[str, float] = field(default_factory=dict)

            module.MessageEnv, module.MessageEnvInitOutput = object, MessageEnvInitOutput
            module.MessageEnvStepOutput = MessageEnvStepOutput
            monkeypatch.setitem(sys.modules, name, module)
            parts = name.split(".")
            for i in range(1, len(parts)):
                parent: Any = ModuleType(".".join(parts[:i]))
                parent.__path__ = []
                monkeypatch.setitem(sys.modules, parent.__name__, parent)
        return torchtitan_environment(Shop)

    @pytest.mark.parametrize("arguments", ['{"item": "pens"}', {"item": "pens"}])
    async def test_an_episode(self, environment: Any, arguments: Any) -> None:
        env = environment(None, env_input=3)
        opening = await env.init()
        assert opening.init_prompt_messages == [{"role": "user", "content": "What do 3 pens cost?"}]
        assert opening.tools[0]["function"]["name"] == "price"
        asked = {"type": "function", "function": {"name": "price", "arguments": arguments}}
        heard = await env.step({"role": "assistant", "content": "Hm.", "tool_calls": [asked]})
        assert (heard.env_messages[0]["content"], heard.done) == ("4", False)
        last = await env.step({"role": "assistant", "content": "12"})
        assert (last.done, last.env_rewards) == (True, {"reward": 1.0})
        await env.close()

    async def test_calls_may_be_objects(self, environment: Any) -> None:
        env = environment(None, env_input=3)
        await env.init()
        asked = SimpleNamespace(function=SimpleNamespace(name="price", arguments='{"item": "bomb"}'))
        with pytest.raises(EpisodeFailure):
            await env.step({"role": "assistant", "content": "", "tool_calls": [asked]})


def test_an_environment_of_the_catalogue_crosses_too() -> None:
    env = trl_environment(lambda: make("turntree/Arithmetic-v0"))()
    env.reset(index=0)
    assert env.calculator(expression="3*4") == "12"


@tool
def fetch(key: str, times: int = 1) -> str:
    """Fetch a thing.

    Args:
        key: Which
        times: How often
    """
    return Shop().price(key, times) * "x"


@pytest.fixture
def store() -> Iterator[Env]:
    pytest.importorskip("mcp", reason='pip install "turntree[mcp]"')

    class Store(Errand):
        toolsets = (McpTools(serve([fetch, calculator]), seconds=300),)

    env = Store()
    env.reset(seed=0)
    yield env
    env.close()


def test_the_tools_of_a_server_are_there_with_their_schemas(store: Env) -> None:
    shown = [entry["function"] for entry in store.reset(seed=0)[1]["tools"]]
    assert [entry["name"] for entry in shown] == ["fetch", "calculator"]
    assert shown[0]["parameters"] == fetch.schema["function"]["parameters"]
    assert shown[0]["description"] == "Fetch a thing."


def test_calls_go_to_the_server_and_back(store: Env) -> None:
    assert use(store, "fetch", key="ab", times=2) == "xxxx"
    assert use(store, "calculator", expression="6*7") == "42"


def test_mistakes_of_the_model_come_back_from_the_server(store: Env) -> None:
    assert use(store, "fetch", key="air") == "Error: not for sale"
    assert use(store, "fetch").startswith("Error: fetch needs the argument 'key'")


def test_a_tool_that_breaks_on_the_server_is_a_failure(store: Env) -> None:
    assert store.step(call(store, "fetch", key="bomb"))[4]["stop_reason"] == "failure"
