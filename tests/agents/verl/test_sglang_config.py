"""Configurations of training with SGLang: they compose, and verl's and SGLang's own settings take them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from machine_speed import patience
from omegaconf import OmegaConf

from turntree.agents.engines.protocol import Sampling
from turntree.agents.engines.request_wire import seed_of, state_of
from turntree.agents.engines.sglang.settings import VARIABLE, settings_from_environment
from turntree.agents.verl.backends import turn_request
from turntree.agents.verl.compose import compose
from turntree.agents.verl.sections import ConfigError
from turntree.spec_tree import DialogueState

GPU = ["engine=sglang", "size=1.5b", "env=gsm8k"]
SECTION = "actor_rollout_ref.rollout.engine_kwargs.turntree"


def composed(*overrides: str) -> Any:
    return compose(None, [*GPU, *overrides]).verl


def arguments(config: Any) -> dict[str, Any]:
    return OmegaConf.to_container(config.actor_rollout_ref.rollout.engine_kwargs.sglang)


def test_the_worker_takes_the_place_of_sglangs_ngram() -> None:
    config = composed(f"{SECTION}.speculation.max_nodes=5", f"+{SECTION}.forest.rollouts_per_state=7")
    given = arguments(config)
    assert given["speculative_algorithm"] == "NGRAM"
    assert given["speculative_num_draft_tokens"] == 6
    assert given["page_size"] == 1
    settings = settings_from_environment(config.ray_kwargs.ray_init.runtime_env.env_vars)
    assert settings.replace_ngram
    assert settings.forest.rollouts_per_state == 7


def test_without_speculation_sglang_is_left_as_it_is() -> None:
    config = composed("speculation=none")
    assert "speculative_algorithm" not in arguments(config)
    assert OmegaConf.select(config, f"ray_kwargs.ray_init.runtime_env.env_vars.{VARIABLE}") is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("turntree.reuse.mode=exact", "reuse.mode=exact needs turntree's own engine"),
        (f"{SECTION}.threads=2", "threads is a setting of turntree's own engine"),
        (f"{SECTION}.speculation.leader_first=true", "leader_first"),
        (f"{SECTION}.speculation.max_nods=2", "did you mean 'max_nodes'"),
        ("actor_rollout_ref.rollout.engine_kwargs.sglang.speculative_algorithm=EAGLE", "speculation=none"),
        ("actor_rollout_ref.model.mtp={enable: true, enable_rollout: true}", "drafts of the model's own"),
    ],
)
def test_what_does_not_go_together_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        composed(override)


def test_the_shipped_configuration_has_the_drafts_on() -> None:
    config = compose("grpo_gsm8k_sglang").verl
    assert config.actor_rollout_ref.rollout.name == "sglang"
    assert arguments(config)["speculative_algorithm"] == "NGRAM"


def test_verls_own_settings_take_the_rollout() -> None:
    from verl.utils.config import omega_conf_to_dataclass

    rollout = composed().actor_rollout_ref.rollout
    OmegaConf.resolve(rollout)
    settings = omega_conf_to_dataclass(rollout)
    assert settings.name == "sglang"
    assert settings.engine_kwargs["sglang"]["speculative_num_draft_tokens"] == 9


def test_a_turn_brings_its_state_and_its_seed_in_the_words_of_sglang() -> None:
    state = DialogueState(exact=5, task="7", env="sums")
    asked = turn_request("sglang", Sampling(seed=11, max_tokens=9), state)
    assert not asked.arguments
    assert "seed" not in asked.parameters, "SGLang knows no such parameter"
    assert state_of(asked.parameters["custom_params"]) == state
    assert seed_of(asked.parameters["custom_params"]) == 11
    json.dumps(asked.parameters)


_SERVER = """
import json, os, sys
sys.path.insert(0, {support!r})
from cpu_sglang import prepare
given, variable = json.loads(sys.argv[1]), sys.argv[2]
prepare(json.loads(variable))
from verl.workers.rollout.sglang_rollout import async_sglang_server  # verl's server can be imported beside it
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs
from tiny_llama import save_tiny_llama
import pathlib, tempfile
model = save_tiny_llama(pathlib.Path(tempfile.mkdtemp()))
given |= {{"device": "cpu", "attention_backend": "torch_native"}}
load_plugins()  # the stand-in for the CPU lifts SGLang's refusal of NGRAM without CUDA
args = ServerArgs(model_path=str(model), skip_tokenizer_init=True, trust_remote_code=False, **given)
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
worker = SpeculativeAlgorithm.from_string(args.speculative_algorithm).create_worker(args)
print("WORKER", worker.__module__, worker.__name__)
"""


@pytest.mark.sglang
def test_sglang_takes_the_arguments_and_makes_turntrees_worker_of_them(request: pytest.FixtureRequest) -> None:
    sglang = pytest.importorskip("sglang", reason="needs SGLang; see make test-sglang")
    if not sglang.__version__.startswith("0.5.12"):
        pytest.skip("verl 0.9.1 is made for SGLang 0.5.12")
    config = composed()
    support = str(request.config.rootpath / "tests" / "support")
    given = json.dumps(arguments(config))
    variable = config.ray_kwargs.ray_init.runtime_env.env_vars[VARIABLE]
    done = subprocess.run(
        [sys.executable, "-c", _SERVER.format(support=support), given, variable],
        capture_output=True,
        text=True,
        timeout=patience(300),
    )
    assert "WORKER turntree.agents.engines.sglang.worker TurntreeWorker" in done.stdout, done.stderr[-3000:]
