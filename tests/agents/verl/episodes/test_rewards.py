import inspect
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from echoing import ECHO, GOLD, spoken
from omegaconf import OmegaConf
from tables import table
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.trainer.ppo.reward import get_custom_reward_fn

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.episodes.rewards import Ungraded, compute_score, compute_score_async
from turntree.agents.verl.episodes.scored_text import SAMPLE, sample_to_dict
from turntree.rewards import UnknownAnswerFormat, UnknownReward

UNREADABLE = "\\frac{"


def played(episode: Episode) -> dict[str, Any]:
    return {SAMPLE: sample_to_dict(episode), "num_turns": len(episode.messages)}


@pytest.mark.parametrize(("data_source", "text", "gold", "acc"), table(__file__, "rules_of_sets"))
async def test_the_data_set_chooses_the_rules(data_source: str, text: str, gold: str, acc: float) -> None:
    scored = compute_score(data_source, text, gold)
    assert (scored["score"], scored["acc"], scored["ungraded"]) == (acc, acc, 0.0)
    again = await compute_score_async(data_source, text, gold, extra_info=None, reward_router_address=None)
    assert again == scored


def test_every_sample_has_the_same_keys_and_numbers_where_verl_averages() -> None:
    rewards = {"answer": 1.0, "answer_format": 0.1}
    failed = replace(spoken("5"), stop_reason=StopReason.FAILURE, failure="x")
    open_one = replace(spoken("#### 5"), task=replace(spoken("#### 5").task, answer=UNREADABLE))
    results = [
        compute_score("math", "#### 5", "5", rewards=rewards),
        compute_score("math", "", "5", rewards=rewards),
        compute_score("math", "\\boxed{\\phantom{5}}", "5", {}, rewards=rewards),
        compute_score("math", "", "", played(failed), rewards=rewards),
        compute_score("math", "", "", played(open_one), rewards=rewards),
    ]
    assert len({tuple(one) for one in results}) == 1
    for one in results:
        texts = {key for key, value in one.items() if not isinstance(value, float)}
        assert texts == {"status", "answer", "method"}
    assert [one["ungraded"] for one in results] == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert [one["status"] for one in results][3:] == ["failure", "unparseable"]
    assert results[2]["suspect"] == 1.0


def test_a_data_set_without_rules_is_an_error_that_says_what_to_declare(rank: str) -> None:
    with pytest.raises(UnknownAnswerFormat, match=r"'mine' has no answer format; set --answer-format"):
        compute_score("mine", "5", "5")
    assert compute_score("mine", "5", "5", answer_format="math")["score"] == 1.0
    with pytest.raises(ConfigError, match="rank need all samples"):
        compute_score("math", "5", "5", rewards={"answer": 1, rank: 0.1})


async def test_what_nobody_masks_is_raised_and_never_0() -> None:
    with pytest.raises(Ungraded, match="answer could not be graded"):
        compute_score("math", "it is 5", UNREADABLE)
    with pytest.raises(Ungraded):
        await compute_score_async("math", "it is 5", UNREADABLE)


def test_the_whole_response_of_a_dialogue_is_never_scored() -> None:
    whole = f"let me see {ECHO} I do not know"
    with pytest.raises(ConfigError, match="use the agent loop turntree_env"):
        compute_score("math", whole, GOLD, {"num_turns": 4})
    quiet = compute_score("math", whole, GOLD, played(spoken("let me see", "I do not know")))
    assert (quiet["score"], quiet["answered"]) == (0.0, 0.0)
    assert compute_score("math", whole, GOLD, played(spoken("let me see", f"#### {GOLD}")))["score"] == 1.0


@pytest.mark.parametrize("name", ["compute_score", "compute_score_async"])
def test_verl_loads_the_function_with_its_settings(name: str) -> None:
    section = {
        "path": "pkg://turntree.agents.verl.episodes.rewards",
        "name": name,
        "reward_kwargs": {"answer_format": "math", "rewards": {"answer": 1, "finished": 0.5}},
    }
    function = get_custom_reward_fn(OmegaConf.create({"reward": {"custom_reward_function": section}}))
    assert inspect.iscoroutinefunction(function) is (name == "compute_score_async")
    if name == "compute_score":
        assert function(data_source="x", solution_str="5", ground_truth="5", extra_info={})["score"] == 1.5


def proto(tokenizer: Any, text: str, gold: str = GOLD, extra: Any = None, *, turns: int = 5) -> DataProto:
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    mask = torch.ones(1, 1 + ids.shape[1], dtype=torch.int64)
    batch = TensorDict({"prompts": ids[:, :1], "responses": ids, "attention_mask": mask}, batch_size=1)
    columns = {
        "data_source": "math",
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"index": 0},
        "tool_extra_fields": extra or {},
    }
    objects = {key: np.array([value], dtype=object) for key, value in columns.items()}
    return DataProto(batch=batch, non_tensor_batch={"__num_turns__": np.array([turns]), **objects})


async def test_verls_own_manager_would_pay_for_what_a_tool_printed(chatml: Any) -> None:
    # The control: the same rows, through verl's manager with a grader that looks for the last "####".
    def grade(solution_str: str, ground_truth: str, **_: Any) -> float:
        return float(solution_str.rpartition("####")[2].split()[0] == ground_truth)

    naive = NaiveRewardManager(OmegaConf.create({}), chatml, grade)
    rows = proto(chatml, f"hm {ECHO}\nI do not know")
    assert (await naive.run_single(rows))["reward_score"] == 1.0


async def test_verls_own_manager_with_our_function_does_not(chatml: Any) -> None:
    naive = NaiveRewardManager(OmegaConf.create({}), chatml, partial(compute_score))
    rows = proto(chatml, f"hm {ECHO}\nI do not know", extra=played(spoken("hm", "I do not know")))
    assert (await naive.run_single(rows))["reward_score"] == 0.0
    with pytest.raises(ConfigError, match="tool output would be scored"):
        await naive.run_single(proto(chatml, f"hm {ECHO}"))


async def test_a_single_turn_of_verls_own_loop_is_scored_as_it_is(chatml: Any) -> None:
    rewards = {"answer": 1, "answer_format": 0.25}
    naive = NaiveRewardManager(OmegaConf.create({}), chatml, partial(compute_score, rewards=rewards))
    assert (await naive.run_single(proto(chatml, "so\n#### 42", turns=2)))["reward_score"] == 1.25
    misspelt = NaiveRewardManager(OmegaConf.create({}), chatml, partial(compute_score, rewards={"anser": 1}))
    with pytest.raises(UnknownReward, match="answer"):
        await misspelt.run_single(proto(chatml, "so\n#### 42", turns=2))
    with pytest.raises(Ungraded):
        await NaiveRewardManager(OmegaConf.create({}), chatml, compute_score).run_single(
            proto(chatml, "so\n#### 42", UNREADABLE, turns=2)
        )
