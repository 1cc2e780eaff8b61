import inspect
from typing import Any

import pytest
from playing import Shop

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
