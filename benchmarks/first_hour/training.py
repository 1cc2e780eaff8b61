"""Three steps of ``turntree train`` with vLLM: sleep and wake-up, weight transfer, memory, log-probabilities.

The policy has random weights and the demo's tokens: all rewards are 0, but batches cost what other batches do.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch
from training import of_step

from first_hour import models
from first_hour.setting import Row, Setting
from turntree.agents.verl.launch import StepReport, train

STEPS = 3
#: column -> end of the name of verl's metric
COLUMNS = {
    "rollout_difference": "training/rollout_probs_diff_max",
    "correlation": "training/rollout_actor_probs_pearson_corr",
    "allocated_gb": "perf/max_memory_allocated_gb",
    "reserved_gb": "perf/max_memory_reserved_gb",
}
SMALL = [
    *("engine=vllm_cpu", "size=tiny", "data.train_batch_size=2", "actor_rollout_ref.rollout.n=2"),
    *("data.max_prompt_length=64", "data.max_response_length=96"),
    "turntree.env_kwargs={system_prompt: '', describes_tools: true, limits: {max_turns: 2, max_turn_tokens: 12}}",
]
LARGE = ["engine=vllm", "size=1.5b", "trainer.save_freq=-1", "trainer.test_freq=-1"]


def rows(setting: Setting) -> list[Row]:
    """Return seconds, memory and differences of each step.

    Raises:
        RuntimeError: If the training did not end.
    """
    logging.basicConfig(level=logging.INFO)
    reports: list[StepReport] = []
    folder = (setting.folder / "training").absolute()
    model = (setting.model or _policy(setting)).absolute()
    status = train(
        "turntree_trainer",
        [
            *setting.of(LARGE, SMALL),
            *("env=arithmetic", "algorithm=grpo", "speculation=[tree]"),
            f"actor_rollout_ref.model.path={model}",
            f"turntree.run_dir={folder}",
            f"trainer.total_training_steps={STEPS}",
            "trainer.resume_mode=disable",
            "algorithm.rollout_correction.bypass_mode=false",  # the trainer computes the probabilities as well
        ],
        on_step=reports.append,
    )
    if status:
        raise RuntimeError(f"turntree train ended with status {status}; see {folder / 'train.log'}")
    return [_row(report) for report in reports]


def _row(report: StepReport) -> Row:
    times = {name: round(value, 3) for name, value in of_step(report).items() if value == value}
    return {
        "number": report.step,
        **times,
        **{
            name: max(value for metric, value in report.metrics.items() if metric.endswith(key))
            for name, key in COLUMNS.items()
            if any(metric.endswith(key) for metric in report.metrics)
        },
    }


def _policy(setting: Setting) -> Path:
    from turntree.agents.demo.tokenizer import END, build_tokenizer

    folder, tokenizer = setting.folder / "models" / "untrained", build_tokenizer()
    if not (folder / "tokenizer.json").exists():
        end, shape = tokenizer.convert_tokens_to_ids(END), setting.of(models.LARGE, models.SMALL)
        vocabulary = setting.of(151_936, 64)
        model = models.random_llama(vocabulary, bos_token_id=None, eos_token_id=end, **shape)
        model.to(getattr(torch, setting.dtype)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        file = folder / "tokenizer.json"
        words = json.loads(file.read_text())
        # verl lets no token be sampled that the tokenizer has not: the two would have other distributions
        words["model"]["vocab"] |= {f"word{n} ": n for n in range(len(tokenizer), vocabulary)}
        file.write_text(json.dumps(words))
    return folder
