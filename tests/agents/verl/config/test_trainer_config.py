import logging
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from omegaconf import OmegaConf
from upstream import upstream

from turntree.agents.verl.config.compose import Composition
from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.config.trainer_config import MICRO_BATCHES

Compose = Callable[..., Composition]
READ = (*MICRO_BATCHES, "critic.ppo_infer_max_token_len_per_gpu")
SMALL = ("size=small", "env=search", "algorithm=ppo")
ROW = 768 + 3072
ON_GPUS = ("device=gpu", "engine=vllm", "size=small", "env=gsm8k", "algorithm=ppo")
MODELS = ("actor_rollout_ref.model", "critic.model")


def sizes(composition: Composition) -> list[int]:
    return [OmegaConf.select(composition.verl, key) for key in READ]


def test_the_micro_batches_of_a_size_are_raised_to_the_longest_row(composed: Compose) -> None:
    assert sizes(composed(*SMALL, config=None)) == [ROW] * 5
    shorter = composed(*SMALL, "data.max_response_length=512", config=None)
    assert sizes(shorter) == [2048] * 5, "the control: those of the size"
    larger = composed(*SMALL, "critic.ppo_max_token_len_per_gpu=4096", config=None)
    assert sizes(larger) == [ROW] * 3 + [4096] * 2, "one that is larger stays"
    shared = "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"
    assert sizes(composed(*SMALL, shared, f"{MICRO_BATCHES[0]}={ROW // 2}", config=None))[0] == ROW // 2


def test_one_that_was_set_is_refused_where_a_row_does_not_fit(composed: Compose) -> None:
    for key in MICRO_BATCHES:
        with pytest.raises(
            ConfigError, match=rf"{key} must be at least the longest row, .* = {ROW} tokens, got 3839; raise"
        ):
            composed(*SMALL, f"{key}={ROW - 1}", config=None)
    assert sizes(composed(*SMALL, f"{MICRO_BATCHES[0]}={ROW}", config=None))[0] == ROW
    text = "actor_rollout_ref: {actor: {ppo_max_token_len_per_gpu: 1000}}"
    with pytest.raises(ConfigError, match="got 1000; raise"):
        composed(text=text)
    fixed = composed(*SMALL, "actor_rollout_ref.actor.use_dynamic_bsz=false", f"{MICRO_BATCHES[0]}=1", config=None)
    assert sizes(fixed)[0] == 1, "micro-batches by rows do not read it"


def test_verls_trainer_still_reads_the_critics_micro_batch_from_another_key() -> None:
    source = upstream("verl/trainer/ppo/v1/trainer_base.py")
    assert "critic_cfg.engine.max_token_len_per_gpu = critic_cfg.ppo_infer_max_token_len_per_gpu" in source


@pytest.fixture
def flash_attention(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    def set_(there: bool) -> None:
        for name in ("flash_attn", "flash_attn.bert_padding"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name) if there else None)

    return set_


def attention(composition: Composition) -> list[tuple[bool, str | None]]:
    chosen = [OmegaConf.select(composition.verl, model) for model in MODELS]
    return [(model.use_remove_padding, model.override_config.get("attn_implementation")) for model in chosen]


def test_a_training_on_gpus_without_flash_attention_takes_pytorchs_and_says_so(composed, flash_attention, caplog):
    flash_attention(False)
    assert attention(composed(*ON_GPUS, config=None)) == [(False, "sdpa")] * 2
    (said,) = [record.getMessage() for record in caplog.records if "flash-attn" in record.getMessage()]
    assert "use_remove_padding=false and attn_implementation=sdpa" in said
    eager = "+actor_rollout_ref.model.override_config.attn_implementation=eager"
    assert attention(composed(*ON_GPUS, eager, config=None))[0] == (False, "eager"), "what needs no flash-attn stays"


def test_one_with_flash_attention_or_on_the_cpu_is_left_as_it_is(composed, flash_attention, caplog):
    caplog.set_level(logging.WARNING)
    flash_attention(True)
    assert attention(composed(*ON_GPUS, config=None)) == [(True, None)] * 2
    flash_attention(False)
    composed("device=cpu", "engine=local", "env=gsm8k", "algorithm=ppo", config=None)
    assert not caplog.records
