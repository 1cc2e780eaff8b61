import inspect
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from playing import Shop

from turntree.envs.bridges.failure import EpisodeFailure
from turntree.envs.bridges.torchtitan import torchtitan_environment
from turntree.envs.bridges.trl import trl_environment, trl_reward


class TestTRL:
    def begin(self, index: int = 3) -> Any:
        env = trl_environment(Shop)()
        assert env.reset(index=index, other="column") == f"What do {index} pens cost?"
        return env

    def test_its_public_methods_are_the_tools_and_what_one_said_last_is_no_answer(self) -> None:
        env = self.begin()
        assert env.price(item="pens", count=2) == "8"
        assert env.price(item="air") == "Error: not for sale"
        cut = [{"role": "assistant", "content": "12"}, {"role": "tool", "name": "price", "content": "12"}]
        assert trl_reward([cut], environments=[self.begin()]) == [0.0]
        members = dict(inspect.getmembers(trl_environment(Shop), predicate=inspect.isfunction))
        assert {name for name in members if not name.startswith("_")} == {"reset", "price"}

    def test_the_reward_function_gives_the_answer_to_the_environment(self) -> None:
        right, wrong, failed = (self.begin() for _ in range(3))
        failed.price(item="bomb")
        assert failed.price(item="pens") == "Error: the episode has ended"
        completions = [[{"role": "assistant", "content": "12"}], [{"role": "assistant", "content": "11"}], "12"]
        assert trl_reward(completions, environments=[right, wrong, failed]) == [1.0, 0.0, None]

    def test_transformers_reads_the_same_schema_from_the_method(self) -> None:
        utils = pytest.importorskip("transformers.utils", reason="TRL describes tools with it")
        assert utils.get_json_schema(self.begin().price) == Shop.tools[0].schema


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
