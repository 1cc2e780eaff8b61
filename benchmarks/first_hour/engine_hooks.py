"""Play recorded turns with a real engine and write a line per step; loaded in the engine's own processes.

At each position of a recorded turn, the recorded token gets a logit above all others before sampling, so every sampler
and every verification of drafts yields it at its usual cost. The engines load this module through plugin entry points
that ``hooked`` writes into a temporary folder. Supported: vLLM's first model runner (0.24, 0.28) and SGLang (0.5.12).
turntree's seed of a request identifies its turn.

Not covered: several ranks, each of which would write a file of steps.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drafting.traces import Turn
from torch import Tensor

from turntree.agents.engines.request_wire import seed_of

FOLDER = "TURNTREE_RECORDED_TURNS"  #: environment variable with the folder of the turns and of the files of steps
PLUGIN = "recorded_turns"  #: name of the entry points
#: monotonic seconds, requests, tokens and drafts of the pass (SGLang's with padding), graph mode
STEP = ("at", "requests", "tokens", "drafts", "mode")
_SURE = 1e4


def hooked(folder: Path, turns: Sequence[Turn]) -> None:
    """Let engines that this process starts play ``turns``; a request's seed is the index of its turn."""
    save(folder, turns)
    package = folder / f"{PLUGIN}-0.dist-info"
    package.mkdir(exist_ok=True)
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PLUGIN}\nVersion: 0\n")
    groups = {"vllm.general_plugins": "in_vllm", "sglang.srt.plugins": "in_sglang"}
    lines = (f"[{group}]\n{PLUGIN} = {__name__}:{function}\n" for group, function in groups.items())
    (package / "entry_points.txt").write_text("".join(lines))
    paths = [str(folder), str(Path(__file__).resolve().parents[1])]
    sys.path += [path for path in paths if path not in sys.path]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ[FOLDER] = str(folder)


def save(folder: Path, turns: Sequence[Turn]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.concatenate([turn.tokens for turn in turns])
    offsets = np.cumsum([0, *(len(turn.tokens) for turn in turns)])
    before = np.array([len(turn.prompt) for turn in turns])
    np.savez(folder / "turns.npz", tokens=tokens.astype(np.int64), offsets=offsets, before=before)


class Recorded:
    """The recorded turns, on the device of the logits."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "turns.npz") as file:
            self._parts = {name: torch.from_numpy(file[name]) for name in file.files}

    def force(self, logits: Tensor, turns: Tensor, positions: Tensor) -> None:
        """Make the recorded tokens certain, without waiting for the device.

        Args:
            logits: Changed in place, shape (rows, vocabulary).
            turns: Index of the turn of each row, -1 for none, on any device, shape (rows,).
            positions: Position in the context of the token before the sampled one, shape (rows,).
        """
        if self._parts["tokens"].device != logits.device:
            self._parts = {name: part.to(logits.device) for name, part in self._parts.items()}
        tokens, offsets, before = (self._parts[name] for name in ("tokens", "offsets", "before"))
        played = turns.to(logits.device, non_blocking=True)
        turn = played.clamp(min=0)
        at = offsets[turn] + positions.long() + 1 - before[turn]
        known = (played >= 0) & (at >= offsets[turn]) & (at < offsets[turn + 1])
        token = tokens[at.clamp(0, len(tokens) - 1)][:, None]
        value = torch.where(known[:, None], _SURE, logits.gather(1, token).float())
        logits.scatter_(1, token, value.to(logits.dtype))


class Steps:
    def __init__(self, folder: Path) -> None:
        self._name = folder / f"steps-{os.getpid()}.csv"
        self._file: Any = None

    def write(self, requests: int, tokens: int, drafts: int, mode: str) -> None:
        if self._file is None:  # not at the start: most of an engine's processes make no step
            self._file = self._name.open("w", buffering=1)
            self._file.write(",".join(STEP) + "\n")
        self._file.write(f"{time.monotonic():.6f},{requests},{tokens},{drafts},{mode}\n")


def in_vllm() -> None:
    """Wrap the sampling of vLLM's first model runner; a second call changes nothing."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if hasattr(GPUModelRunner, PLUGIN):
        return
    folder = Path(os.environ[FOLDER])
    recorded, steps = Recorded(folder), Steps(folder)
    dispatch, sample = GPUModelRunner._determine_batch_execution_and_padding, GPUModelRunner.sample_tokens

    @functools.wraps(dispatch)
    def dispatched(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = dispatch(self, *args, **kwargs)
        self.graph_mode = found[0].name
        return found

    @functools.wraps(sample)
    def sampled(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = self.execute_model_state
        if state is not None:
            ids = list(self.input_batch.req_ids)
            if getattr(self, "recorded_ids", None) != ids:
                entries = (self.requests[id_].sampling_params.extra_args for id_ in ids)
                self.recorded_ids, self.recorded_turns = ids, torch.tensor([_turn(one) for one in entries])
            drafts = state.spec_decode_metadata
            turns, last = self.recorded_turns, self.query_start_loc.gpu[1 : len(ids) + 1] - 1
            if drafts is not None:
                turns = turns.repeat_interleave(torch.tensor(drafts.num_draft_tokens) + 1)
                last = drafts.logits_indices
            positions = getattr(self.positions, "gpu", self.positions)  # a tensor alone from 0.24 on
            recorded.force(state.logits, turns, positions[last.long()])
            tokens = state.scheduler_output.total_num_scheduled_tokens
            steps.write(len(ids), tokens, len(state.logits) - len(ids), self.graph_mode)
        return sample(self, *args, **kwargs)

    GPUModelRunner._determine_batch_execution_and_padding = dispatched
    GPUModelRunner.sample_tokens = sampled
    setattr(GPUModelRunner, PLUGIN, True)


def in_sglang() -> None:
    """Wrap the forward pass of SGLang; a second call changes nothing."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.model_executor.model_runner import ModelRunner

    if hasattr(ModelRunner, PLUGIN):
        return
    folder = Path(os.environ[FOLDER])
    recorded, steps, turns = Recorded(folder), Steps(folder), {}
    forward, begin = ModelRunner.forward, Req.__init__

    @functools.wraps(begin)
    def begun(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        turns[self.rid] = _turn(self.sampling_params.custom_params)

    @functools.wraps(forward)
    def passed(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        found = forward(self, batch, *args, **kwargs)
        logits = getattr(found.logits_output, "next_token_logits", None)
        if logits is not None and batch.rids:
            reads = batch.forward_mode.is_extend() and not batch.forward_mode.is_target_verify()
            positions = batch.seq_lens - 1 if reads else batch.positions
            rows, width = len(batch.rids), len(logits) // len(batch.rids)
            own = torch.tensor([turns.get(rid, -1) for rid in batch.rids]).repeat_interleave(width)
            recorded.force(logits[: len(own)], own, positions[: len(own)])
            mode = "READ" if reads else "FULL" if found.can_run_graph else "NONE"
            steps.write(rows, len(batch.input_ids), len(own) - rows, mode)
        return found

    Req.__init__, ModelRunner.forward = begun, passed
    setattr(ModelRunner, PLUGIN, True)


def _turn(entries: Any) -> int:
    seed = seed_of(json.loads(entries) if isinstance(entries, str) else entries)
    return -1 if seed is None else seed
