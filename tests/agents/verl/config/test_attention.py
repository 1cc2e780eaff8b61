import logging
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from omegaconf import OmegaConf

from turntree.agents.verl.config.compose import Composition

ON_GPUS = ("device=gpu", "engine=vllm", "size=small", "env=gsm8k", "algorithm=ppo")
MODELS = ("actor_rollout_ref.model", "critic.model")


@pytest.fixture
def flash_attention(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Installs it, or takes it away."""

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
