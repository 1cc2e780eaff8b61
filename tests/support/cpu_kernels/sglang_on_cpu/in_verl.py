"""Imported by verl in each of its processes: lets its trainer send weights to SGLang without an accelerator."""

from verl.workers.rollout.base import _ROLLOUT_REGISTRY

import turntree.agents.verl.plugin  # noqa: F401 - registers its own, whose place this takes

# A name, so that SGLang is imported in the processes alone that have a rollout.
_ROLLOUT_REGISTRY[("sglang", "async")] = "sglang_on_cpu.verl_weights.CpuServerAdapter"
