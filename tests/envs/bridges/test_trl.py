from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bridge_results import require_result
from chat_tokenizers import chatml_tokenizer
from playing import Shop
from tiny_llama import random_llama

from turntree.envs import Message, Reply
from turntree.envs.bridges.trl import trl_environment, trl_reward

pytestmark = pytest.mark.interop


def parts(folder: Path, make_env: Any, steps: int, **more: Any) -> dict[str, Any]:
    from datasets import Dataset
    from trl import GRPOConfig
    from trl.chat_template_utils import qwen3_chat_template

    tokenizer = chatml_tokenizer()
    tokenizer.chat_template, tokenizer.pad_token = qwen3_chat_template, tokenizer.eos_token
    settings = {
        "max_steps": steps,
        "per_device_train_batch_size": 4,
        "num_generations": 2,
        "max_completion_length": 16,
        "report_to": "none",
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "learning_rate": 1e-2,
        "seed": 1,
    }
    ask = [{"role": "user", "content": ""}]
    return {
        "model": random_llama(len(tokenizer), max_position_embeddings=2048, eos_token_id=tokenizer.eos_token_id),
        "processing_class": tokenizer,
        "reward_funcs": trl_reward,
        "environment_factory": trl_environment(make_env),
        "train_dataset": Dataset.from_list([{"prompt": ask, "index": at} for at in range(4)]),
        "args": GRPOConfig(output_dir=str(folder), **(settings | more)),
    }


def test_three_steps_of_a_tiny_model(tmp_path: Path) -> None:
    from trl import GRPOTrainer

    class Short(Shop):
        # Rewards short answers, so that an untrained model's rewards differ.

        def reply(self, message: Message) -> Reply:
            return Reply(reward=1.0 / (1 + len(message.content)), done=True)

    trainer = GRPOTrainer(**parts(tmp_path, Short, 3))
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logged) == 3
    assert all(entry["reward"] > 0 for entry in logged)
    assert any(not weight.detach().equal(before[name]) for name, weight in trainer.model.named_parameters())


def test_a_call_in_trls_loop_reaches_the_tool_and_the_answer_is_paid(tmp_path: Path) -> None:
    from trl import GRPOTrainer

    class Dozen(Shop):
        def reply(self, message: Message) -> Reply:
            return Reply(reward=float(message.content.strip() == "12"), done=True)

    said = ['<tool_call>\n{"name": "price", "arguments": {"item": "pens"}}\n</tool_call>', "12"]

    class Scripted(GRPOTrainer):  # type: ignore[misc]
        seen: list[str] = []
        turn = 0

        def _generate_single_turn(self, prompt_ids: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            self.seen.append(self.processing_class.decode(prompt_ids[0]))
            text = said[min(self.turn, 1)] + "<|im_end|>"
            self.turn += 1
            return [self.processing_class.encode(text) for _ in prompt_ids], None

    trainer = Scripted(**parts(tmp_path, Dozen, 1, max_completion_length=256))
    trainer.train()
    (reward,) = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert reward == 1.0
    assert "pens cost?" in trainer.seen[0]
    assert "Ask for a price." in trainer.seen[0]
    assert "<tool_response>\n4\n</tool_response>" in trainer.seen[1]
    require_result("trl", "three steps of GRPOTrainer on a tiny model: its loop calls tools, answers are rewarded")
