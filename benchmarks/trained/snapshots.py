"""Snapshots of a policy that is trained a little between epochs, widened to a realistic cost.

The policy is the demo's, half a million parameters, warm-started. It is trained on its own episodes by GRPO with the
local engine. Each snapshot is then widened with feed-forward columns and whole layers whose output weights are zero:
the wide policy has the small policy's outputs at the cost of its own size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from trained.training import Player, Setting, Trainer
from turntree.agents.demo.warm_start import warm_started_policy
from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.loop.renderer import Renderer

ENV = "turntree/Arithmetic-v0"
ENV_KWARGS: dict[str, Any] = {
    "tool_format": "compact",
    "system_prompt": "",
    "describes_tools": True,
    "limits": {"max_turns": 6, "max_turn_tokens": 16, "max_context_tokens": 128},
}


def snapshots(
    folder: Path,
    *,
    epochs: int,
    tasks: int,
    samples: int,
    layers: int,
    width: int,
    learning_rate: float = 5e-4,
    steps: int = 1,
) -> list[Path]:
    """Return the policy of each epoch, in ``folder``; between two epochs lie steps of GRPO over all tasks.

    Args:
        folder: Output.
        epochs: Number of snapshots.
        tasks: Per epoch.
        samples: Episodes per task.
        layers: Of the widened policy.
        width: Of its feed-forward parts.
        learning_rate: Of GRPO.
        steps: Of GRPO between two epochs.
    """
    source = warm_started_policy(seed=0)
    tokenizer = AutoTokenizer.from_pretrained(source)
    setting = Setting(
        env=ENV, env_kwargs=ENV_KWARGS, tasks=tasks, batch=tasks, samples=samples, learning_rate=learning_rate
    )
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    trainer, player = Trainer(model, setting), Player(setting, Renderer(tokenizer))
    engine = LocalEngine(
        Policy.load(source, dtype="float32", device="cpu"),
        config=LocalEngineConfig(max_batch=64, max_context=256, monitors=False),
    )
    found = []
    try:
        for epoch in range(epochs):
            target = folder / f"epoch{epoch + 1}"
            widened(model, layers=layers, width=width).save_pretrained(target)
            tokenizer.save_pretrained(target)
            found.append(target)
            for step in range(epoch * steps, (epoch + 1) * steps if epoch + 1 < epochs else 0):
                trainer.update(player.play(engine, step, seed=step))
                engine.update_weights(trainer.named())
    finally:
        engine.close()
    return found


def widened(model: Any, *, layers: int, width: int) -> Any:
    config = type(model.config)(**model.config.to_dict())
    config.num_hidden_layers, config.intermediate_size = layers, width
    config.layer_types = None
    torch.manual_seed(0)
    wide = LlamaForCausalLM(config).float()
    small = model.state_dict()
    with torch.no_grad():
        for name, value in wide.state_dict().items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                value.zero_()
            if name in small:
                value[tuple(slice(size) for size in small[name].shape)] = small[name]
    return wide
