"""The models of the stages, made without a network; ``prompts.json`` next to each has its prompts.

``sharp`` has the shape of a model of 1.5 billion parameters and random weights with scaled-up output: at a low
temperature, samples of a prompt begin alike, so that drafts are possible. ``trained`` is a small model that has learnt
a few texts with occasional choices, widened by layers that add nothing: a step costs something, and drafts are accepted
up to the next choice.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from first_hour.setting import Row, Setting

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from tiny_llama import random_llama

#: Qwen2.5-1.5B's shape
LARGE = {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "max_position_embeddings": 16384,
}  # fmt: skip
SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 4096,
}  # fmt: skip
TRAINED = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 1024,
}  # fmt: skip
TASKS = 32  #: prompts per model
PROMPT, ANSWER, WORDS = 24, 48, 256  #: tokens per prompt and learnt answer; vocabulary
CHOICE = 12  #: an answer can continue in two ways after each of these many tokens
LEARNT = 0.15  #: loss at which training ends; the choices alone give 0.06


def rows(setting: Setting) -> list[Row]:
    found = []
    for make in (sharp, trained):
        began = time.monotonic()
        folder = make(setting)
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        found.append({"model": make.__name__, "seconds": round(time.monotonic() - began, 1), "bytes": size})
    return found


def sharp(setting: Setting) -> Path:
    if setting.model is not None:
        return setting.model
    folder, vocabulary = setting.folder / "models" / "sharp", setting.of(151_936, 512)
    if not (folder / "prompts.json").exists():
        shape = setting.of(LARGE, SMALL)
        with torch.device(setting.device), torch.no_grad():
            model = random_llama(vocabulary, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, **shape)
            width = shape["hidden_size"]
            model.lm_head.weight.normal_(std=2.4 * math.sqrt(2 * math.log(vocabulary) / width))
            for layer in model.model.layers:  # as initialised they attend to all alike, and no wrong place is noticed
                layer.self_attn.q_proj.weight.normal_(std=1.5 / math.sqrt(width))
                layer.self_attn.k_proj.weight.normal_(std=1.5 / math.sqrt(width))
        prompts = np.random.default_rng(0).integers(3, vocabulary, (TASKS, setting.of(256, 24)))
        _save(model.to(getattr(torch, setting.dtype)), folder, prompts.tolist())
        del model
        torch.cuda.empty_cache()  # an engine in this process will want the memory
    return folder


def trained(setting: Setting) -> Path:
    from trained.snapshots import widened

    folder = setting.folder / "models" / "trained"
    if not (folder / "prompts.json").exists():
        model, prompts = _taught(setting.of(TASKS, 4), setting.of(TRAINED, SMALL), setting.device, seconds=60)
        wide = widened(model.cpu(), layers=setting.of(24, 2), width=setting.of(4096, 256))
        _save(wide.to(getattr(torch, setting.dtype)), folder, prompts.tolist())
    return folder


def _taught(tasks: int, shape: dict[str, int], device: str, *, seconds: float) -> tuple[Any, NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, WORDS, (tasks, PROMPT))
    ways = rng.integers(3, WORDS, (tasks, 2, ANSWER))
    model = random_llama(WORDS, bos_token_id=None, eos_token_id=None, **shape).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ends, learnt = time.monotonic() + seconds, False
    while not learnt and time.monotonic() < ends:
        picked = rng.integers(0, 2, (tasks, -(-ANSWER // CHOICE))).repeat(CHOICE, 1)[:, :ANSWER]
        answers = np.take_along_axis(ways, picked[:, None], 1)[:, 0]
        tokens = torch.from_numpy(np.concatenate([prompts, answers], 1)).to(device)
        labels = tokens.clone()
        labels[:, :PROMPT] = -100
        loss = model(tokens, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        learnt = loss.item() < LEARNT
    return model, prompts


def prompts_of(model: Path) -> list[list[int]]:
    # A given model gets questions in its own chat template.
    if (model / "prompts.json").exists():
        found: list[list[int]] = json.loads((model / "prompts.json").read_text())
        return found
    from engine import question_prompts
    from transformers import AutoTokenizer

    return question_prompts(AutoTokenizer.from_pretrained(model))


def temperature_of(setting: Setting) -> float:
    # As in a training, or low enough that random weights repeat themselves.
    return 0.3 if setting.model is None else 1.0


def _save(model: Any, folder: Path, prompts: Sequence[Sequence[int]]) -> None:
    model.save_pretrained(folder)
    (folder / "prompts.json").write_text(json.dumps(prompts))
