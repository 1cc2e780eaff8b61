from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, _agent_loop_registry
from verl.workers.rollout.replica import TokenOutput

from turntree.agents.verl.agent_loop import EnvAgentLoop
from turntree.agents.verl.sections import ConfigError

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


class Servers:
    """Stands in for verl's client; says the same text every turn."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        self.tokens = [*tokenizer(text, add_special_tokens=False)["input_ids"]]
        self.end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.asked: list[dict[str, Any]] = []

    async def generate(self, **request: Any) -> TokenOutput:
        self.asked.append(request)
        tokens = [*self.tokens, self.end]
        return TokenOutput(token_ids=tokens, log_probs=[-1.0] * len(tokens), extra_fields={"global_steps": 4})


def make_loop(config: Any, servers: Any, tokenizer: Any) -> EnvAgentLoop:
    whole = OmegaConf.create({"actor_rollout_ref": {"rollout": config}})
    return EnvAgentLoop(trainer_config=DictConfigWrap(whole), server_manager=servers, tokenizer=tokenizer, tools=None)


def test_verl_finds_the_loop_by_its_name() -> None:
    assert _agent_loop_registry["turntree_env"]["_target_"].endswith(".EnvAgentLoop")


@pytest.mark.parametrize(("backend", "given"), [("turntree", True), ("vllm", False)])
async def test_only_our_backend_is_given_the_dialogue_state(
    rollout_config: Any, chatml: Any, row: dict[str, Any], backend: str, given: bool
) -> None:
    servers = Servers(chatml, "#### 5")
    loop = make_loop(OmegaConf.merge(rollout_config, {"name": backend}), servers, chatml)
    output = await loop.run(SAMPLING, **row)
    assert ("state" in servers.asked[0]) is given
    assert sum(output.response_mask) == len(servers.tokens) + 1
    assert output.extra_fields["max_global_steps"] == 4


async def test_servers_that_are_gone_mask_the_episode(rollout_config: Any, chatml: Any, row: dict[str, Any]) -> None:
    class Gone:
        async def generate(self, **request: Any) -> TokenOutput:
            raise ConnectionError("no such actor")

    output = await make_loop(rollout_config, Gone(), chatml).run(SAMPLING, **row)
    assert sum(output.response_mask) == 0
    assert output.extra_fields["reward_extra_info"]["failure"] == 1.0


async def test_rewards_that_need_the_group_are_refused_where_there_is_none(
    rollout_config: Any, chatml: Any, row: dict[str, Any], rank: str
) -> None:
    rollout_config.custom.turntree.rewards = {"answer": 1, rank: 0.5}
    with pytest.raises(ConfigError, match="rank need all of them"):
        await make_loop(rollout_config, Servers(chatml, "5"), chatml).run(SAMPLING, **row)
