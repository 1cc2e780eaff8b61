import importlib
import importlib.metadata
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import verl
import verl.utils.distributed
import verl.utils.fsdp_utils
import verl.utils.model
import verl.utils.torch_functional
from omegaconf import OmegaConf
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from upstream import upstream
from verl.plugin.platform import get_platform
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutReplicaRegistry

from turntree.agents.verl import patches, plugin
from turntree.agents.verl.platform_cpu import PlatformCPU


def upstream_function(file: str, name: str) -> str:
    return upstream(file).partition(f"def {name}(")[2].partition("\ndef ")[0]


def test_verl_runs_on_the_cpu_platform_with_our_backend_once_the_plugin_is_loaded() -> None:
    assert isinstance(get_platform(), PlatformCPU)
    from turntree.agents.verl.serving.local import TurntreeReplica, WeightSender

    assert RolloutReplicaRegistry.get("turntree") is TurntreeReplica
    assert get_rollout_class("turntree") is WeightSender
    assert PlatformCPU().ray_resource_options(1) == {"num_gpus": 1}


@pytest.mark.parametrize(("choice", "cpu"), [("0", False), ("1", True)])
def test_the_environment_variable_decides(monkeypatch: pytest.MonkeyPatch, choice: str, cpu: bool) -> None:
    monkeypatch.setenv("TURNTREE_VERL_CPU", choice)
    assert plugin.trains_on_cpu() is cpu


def test_a_machine_with_an_accelerator_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.plugin.platform import PlatformRegistry

    accelerator = SimpleNamespace(is_platform_available=lambda use_smi_check: True)
    selected: list[Any] = []
    monkeypatch.delenv("TURNTREE_VERL_CPU", raising=False)
    monkeypatch.setitem(PlatformRegistry._platforms, "new", lambda: accelerator)
    monkeypatch.setattr(plugin, "select_cpu_platform", lambda: selected.append(1))
    plugin.register()
    assert selected == []


def test_an_odd_choice_is_an_error_that_is_told_although_verl_swallows_it(monkeypatch, caplog):
    monkeypatch.setenv("TURNTREE_VERL_CPU", "maybe")
    with caplog.at_level(logging.ERROR), pytest.raises(ValueError, match="must be 0, 1 or unset, got 'maybe'"):
        importlib.reload(plugin)
    assert "could not be loaded" in caplog.text


@pytest.mark.parametrize("where", [PlatformCPU(), PlatformCPU().device_module])
def test_tensors_go_to_the_current_device(where: Any) -> None:
    assert torch.zeros(1).to(where.current_device()).device.type == "cpu"


def test_the_device_module_knows_its_memory_and_its_random_state() -> None:
    module = PlatformCPU().device_module
    available, total = module.mem_get_info()
    assert 0 < available <= total
    assert 0 < module.memory_allocated() < total
    assert PlatformCPU().device_module.Stream is torch.cpu.Stream
    module.manual_seed(3)
    state = module.get_rng_state()
    first = torch.rand(4)
    module.set_rng_state(state)
    assert torch.equal(first, torch.rand(4))


def test_the_installed_verl_is_one_that_was_checked_and_another_is_refused_by_name(monkeypatch):
    assert importlib.metadata.version("verl") in patches.VERSIONS
    monkeypatch.setattr(patches, "VERSIONS", ("0.0.1",))
    with pytest.raises(RuntimeError, match=r"pip install verl==0\.0\.1"):
        patches.apply_cpu_patches()


def test_upstream_still_names_the_device_twice_and_torch_still_refuses_that() -> None:
    assert 'backend or f"cpu:gloo,{get_device_name()}:{get_nccl_backend()}"' in upstream("verl/utils/distributed.py")
    with pytest.raises(ValueError, match="cpu"):
        torch.distributed.distributed_c10d.BackendConfig(torch.distributed.Backend("cpu:gloo,cpu:gloo"))


def test_the_process_group_of_the_cpu_has_one_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *, backend, **_: asked.append(backend))
    patches.name_one_process_group_backend()
    verl.utils.distributed.initialize_global_process_group_ray()
    verl.utils.distributed.initialize_global_process_group_ray(backend="cpu:mpi")
    assert asked == ["cpu:gloo", "cpu:mpi"]


def test_the_reference_policy_stays_where_it_is() -> None:
    patches.keep_reference_policy_unpinned()
    policy = verl.utils.fsdp_utils.CPUOffloadPolicy(pin_memory=True)
    assert type(policy) is torch.distributed.fsdp.OffloadPolicy
    source = upstream("verl/workers/engine/fsdp/transformer_impl.py")
    assert "offload_policy = CPUOffloadPolicy(pin_memory=True)" in source


def test_a_critic_loads_without_flash_attention(tiny_model: Path) -> None:
    from transformers import AutoConfig

    patches.load_critic_without_flash_attention()
    config = AutoConfig.from_pretrained(tiny_model, num_labels=1)
    critic = verl.utils.model.load_valuehead_model(str(tiny_model), torch.float32, config, False)
    assert critic.config._attn_implementation == "sdpa"
    assert critic(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 1)
    source = upstream_function("verl/utils/model.py", "load_valuehead_model")
    assert 'attn_implementation="flash_attention_2"' in source


def test_upstream_still_loops_over_tokens() -> None:
    source = upstream_function("verl/utils/torch_functional.py", "logprobs_from_logits_v2")
    assert "[torch.logsumexp(logit, dim=-1) for logit in logits]" in source
    assert "logprobs_labels = torch.stack(logprobs_labels)" in source


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_log_probabilities_and_their_gradient_are_those_of_a_softmax(shape, dtype):
    patches.compute_log_probabilities_at_once()
    logits = torch.randn(*shape, 11, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    labels = torch.arange(torch.Size(shape).numel()).view(shape) % 11
    ours = verl.utils.torch_functional.logprobs_from_logits(logits, labels)
    theirs = logits.float().log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), logits, retain_graph=True)[0] for x in (ours, theirs)))


def test_applying_the_patches_twice_wraps_nothing_twice() -> None:
    patches.apply_cpu_patches()
    before = verl.utils.distributed.initialize_global_process_group_ray
    patches.apply_cpu_patches()
    assert verl.utils.distributed.initialize_global_process_group_ray is before


# Why vLLM's CPU workers take verl's weights in a way of their own; ``test_engine_training`` shows that they do.


@pytest.mark.vllm
def test_upstream_still_empties_the_weights_of_linear_layers_on_the_cpu() -> None:
    linear = upstream("vllm/model_executor/layers/linear.py")
    assert "dispatch_cpu_unquantized_gemm(layer, remove_weight=True)" in linear
    source = upstream_function("vllm/model_executor/layers/utils.py", "dispatch_cpu_unquantized_gemm")
    assert "torch.empty(0" in source.partition("if remove_weight:")[2]


@pytest.mark.vllm
def test_upstream_still_loads_again_in_place_from_an_iterator() -> None:
    source = upstream("vllm/v1/worker/gpu_model_runner.py").partition("def reload_weights(")[2]
    assert "weights_iterator" in source.partition("-> None")[0]


def batch_of(sampled: int) -> Any:
    # verl's batch of four rows, of which only the first has ``sampled`` tokens.
    from verl.protocol import DataProto

    mask = torch.zeros(4, 3, dtype=torch.int64)
    mask[0, :sampled] = 1
    tensors = {name: torch.rand(4, 3) for name in ("token_level_rewards", "values", "old_log_probs")}
    tensors["rollout_log_probs"] = tensors["old_log_probs"].clone()
    batch = DataProto.from_dict({**tensors, "response_mask": mask})
    batch.non_tensor_batch["uid"] = np.array(["a", "a", "b", "b"], dtype=object)
    return batch


@pytest.mark.parametrize("sampled", [0, 1])
@pytest.mark.parametrize("algorithm", ["gae", "grpo", "turn_returns", "rloo"])
def test_a_step_of_which_all_or_all_but_one_token_is_lost_has_advantages(algorithm: str, sampled: int) -> None:
    import turntree.agents.verl.episodes.advantages  # noqa: F401 - registers the estimators

    patches.apply_step_patches()
    trainer: Any = importlib.import_module("verl.trainer.ppo.v1.trainer_base")
    correction = OmegaConf.create({"rollout_is": "token", "rollout_is_threshold": 2.0, "bypass_mode": False})
    batch, metrics = trainer.compute_rollout_correction_and_add_to_batch(batch_of(sampled), correction)
    assert bool(metrics) is (sampled > 0)
    done = trainer.compute_advantage_for_multi_trajectories(
        batch, ["a_0_0", "a_1_0", "b_0_0", "b_1_0"], algorithm, num_repeat=2, config=OmegaConf.create({})
    )
    sampled_tokens = done.batch["response_mask"].bool()
    assert torch.isfinite(done.batch["advantages"][sampled_tokens]).all()


def test_upstream_still_raises_in_a_step_without_tokens() -> None:
    trainer: Any = importlib.import_module("verl.trainer.ppo.v1.trainer_base")
    patches.apply_step_patches()
    with pytest.raises(ValueError, match="has to be 1"):
        verl.utils.torch_functional.masked_var.__wrapped__(torch.rand(2), torch.zeros(2))
    with pytest.raises(ValueError, match="sum of the mask is one"):
        verl.utils.torch_functional.masked_var.__wrapped__(torch.rand(2), torch.tensor([1, 0]))
    with pytest.raises(ValueError, match="at least one valid token"):
        trainer.compute_rollout_correction_and_add_to_batch.__wrapped__(batch_of(0), OmegaConf.create({}))


def test_a_step_with_tokens_is_verls_own() -> None:
    patches.apply_step_patches()
    values, mask = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 1, 0])
    assert float(verl.utils.torch_functional.masked_var(values, mask)) == pytest.approx(0.5)


ROWS, VOCABULARY = 7, 11


class Large(TorchDispatchMode):
    # Counts new tensors with as many elements as the logits.
    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor) and one.numel() >= ROWS * VOCABULARY:
                self.storages[one.untyped_storage().data_ptr()] = one
        return made


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.randn(ROWS, VOCABULARY, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return logits, torch.arange(ROWS) % VOCABULARY


def plainly(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.gather(-1, labels[:, None])[:, 0] - logits.logsumexp(-1)


@pytest.mark.parametrize("rows", [1, 2, ROWS, 100])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(patches, "_LOGITS", rows * VOCABULARY)
    logits, labels = drawn()
    weights = torch.linspace(-1, 1, ROWS)
    ours, theirs = patches.ChosenLogProbabilities.apply(logits, labels), plainly(logits, labels)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad((x * weights).sum(), logits)[0] for x in (ours, theirs)))


def test_the_gradient_is_the_only_tensor_as_large_as_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "_LOGITS", VOCABULARY)
    made = {}
    for name, compute in (("ours", patches.ChosenLogProbabilities.apply), ("plainly", plainly)):
        logits, labels = drawn()
        with Large() as large:
            torch.autograd.grad(compute(logits, labels).sum(), logits)
        made[name] = len(large.storages.keys() - {logits.data_ptr()})
    assert made["ours"] == 1
    assert made["plainly"] > 2, "the control"


def test_no_rows_have_no_log_probabilities() -> None:
    assert patches.ChosenLogProbabilities.apply(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)).shape == (0,)
