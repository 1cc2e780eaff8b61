import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.config.groups import list_options
from turntree.agents.verl.memory.phases import CARD, SPARE, Estimate, estimate
from turntree.agents.verl.memory.rollout import sglang_buffers
from turntree.agents.verl.memory.shapes import shape_of
from turntree.agents.verl.memory.table import estimated, markdown, sizes

ROOT = Path(__file__).resolve().parents[4]
ACTOR, CRITIC = "actor_rollout_ref.actor.fsdp_config", "critic.fsdp"
#: the 32b sizes before their memory was estimated
ON_THE_GPU = "offload_policy=false", "param_offload=true", "optimizer_offload=true"


def estimate_of(*options: str) -> Estimate:
    return estimate(compose(None, options).verl)


@lru_cache
def laid_out(size: str, env: str) -> dict[str, Any]:
    # The parameters of SGLang's buffers in a shipped configuration.
    config = compose(None, ["engine=sglang", f"size={size}", f"env={env}"]).verl
    rollout = config.actor_rollout_ref.rollout
    return {
        "shape": shape_of(config.actor_rollout_ref.model.path),
        "batch": rollout.max_num_seqs,
        "captured": rollout.engine_kwargs.sglang.cuda_graph_max_bs,
        "width": rollout.engine_kwargs.sglang.speculative_num_draft_tokens,
        "context": rollout.engine_kwargs.sglang.context_length,
    }


@pytest.mark.parametrize(
    ("size", "engine", "algorithm"),
    [
        pytest.param(*size, algorithm, marks=[] if (index + late) % 3 == 0 else [pytest.mark.release])
        for index, size in enumerate(sizes())
        for late, algorithm in enumerate(("grpo", "ppo"))
    ],
)
def test_a_size_leaves_a_tenth_of_a_gpu_free_in_every_phase(size: str, engine: str, algorithm: str) -> None:
    found = estimated(size, engine, "airline", algorithm)
    assert found.fits, f"{found.peak_phase} takes {found.peak / 1e9:.0f} GB"
    assert found.peak <= (1 - SPARE) * CARD


@pytest.mark.parametrize("size", [size for size, engine in sizes() if engine == "sglang"])
def test_sglangs_buffers_are_small_in_every_environment(size: str) -> None:
    # The buffers stay while the engine sleeps. With the model's whole context and five widths they were too large.
    for env in list_options("env"):
        given = laid_out(size, "gsm8k") | {"context": laid_out("1.5b", env)["context"]}
        assert sglang_buffers(**given) <= CARD / 25, env
        widths = (1, 2, 4, 8, 9)
        before = sglang_buffers(**given | {"context": 32768, "widths": widths}) + (len(widths) - 1) * 512 * 2**20
        assert before > CARD / 25, "control"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_32b_size_with_adam_on_the_gpus_does_not_fit(engine: str) -> None:
    # Control: the size as it was. Adam's step needs 20 bytes a parameter: 82 GB on each of eight GPUs.
    before = [f"{section}.{setting}" for section in (ACTOR, CRITIC) for setting in ON_THE_GPU]
    found = estimate_of(f"engine={engine}", "size=32b", "env=airline", "algorithm=grpo", *before)
    assert (found.fits, found.peak_phase) == (False, "update")
    state = 4 * shape_of("Qwen/Qwen2.5-32B-Instruct").parameters // 8
    assert found.peak > 5 * state > CARD
    few = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2304"  # a pass then takes less than Adam's step
    update = estimate_of(f"engine={engine}", "size=32b", "env=gsm8k", "algorithm=grpo", *before, few).phases["update"]
    assert update["pass or Adam's step"] == state


def test_upstream_takes_the_root_of_all_moments_at_once() -> None:
    # torch's Adam updates all parameters together if they are of these types; FSDP2's are DTensors.
    import inspect

    from torch.distributed.tensor import DTensor
    from torch.optim import adam
    from torch.optim.optimizer import _foreach_supported_types

    assert DTensor in _foreach_supported_types
    assert "torch._foreach_sqrt(device_exp_avg_sqs)" in inspect.getsource(adam._multi_tensor_adam)


@pytest.mark.parametrize("size", ["1.5b", "7b"])
def test_two_models_states_beside_the_engine_do_not_fit(size: str) -> None:
    # Control: PPO as it was.
    before = (f"{CRITIC}.param_offload=false", f"{CRITIC}.optimizer_offload=false")
    found = estimate_of("engine=vllm", f"size={size}", "env=airline", "algorithm=ppo", *before)
    assert (found.fits, found.peak_phase) == (False, "rollout")


def test_what_waits_in_the_hosts_memory_is_off_the_gpu() -> None:
    options = ("engine=vllm", "size=7b", "env=gsm8k", "algorithm=grpo")
    stays, waits = (
        estimate_of(*options, *(f"{ACTOR}.{key}={value}" for key in ("param_offload", "optimizer_offload")))
        for value in ("false", "true")
    )
    state = 12 * shape_of("Qwen/Qwen2.5-7B-Instruct").parameters
    assert (stays.host, waits.host) == (0, pytest.approx(state, rel=1e-6))
    freed = stays.phases["rollout"]["trainer"] - waits.phases["rollout"]["trainer"]
    assert freed == pytest.approx(state / 8, rel=1e-6)
    assert stays.phases["update"] == waits.phases["update"], "it is fetched for the update"


def test_an_engine_without_room_for_an_episode_does_not_fit() -> None:
    share = "actor_rollout_ref.rollout.gpu_memory_utilization=0.04"
    found = estimate_of("engine=vllm", "size=1.5b", "env=airline", share)
    assert (found.fits, found.episodes) == (False, 0)


def test_the_table_in_the_documentation_is_of_this_code() -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- memory -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert table is not None
    assert table[1] == markdown(), "write it anew: python -m turntree.agents.verl.memory.table"
