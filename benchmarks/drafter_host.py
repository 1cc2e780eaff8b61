"""Measure the host's CPU time for drafts in vLLM: the drafter's, and the steps' while drafts are off.

    $(scripts/venv.sh vllm-0.28)/bin/python benchmarks/drafter_host.py [--only drafting off] [--json OUT]

``drafting``: a stand-in for vLLM's model runner calls the drafter for 4, 64 and 256 requests that repeat stored turns
with 3 % other tokens. ``between`` is the drafter between steps (``propose`` and its thread), ``beside`` is the drafter
that overlaps with asynchronous scheduling. Figures are milliseconds per step without arriving or ending turns, CPU time
of all threads; ``with the lock`` excludes compiled code that releases the interpreter's lock.

``off``: vLLM's CPU build with asynchronous scheduling, as on a GPU, and a model of one layer. The same requests run
with turntree's drafter, switched off, and without a drafter, in alternating groups of steps. CPU time of the process.

Each figure is the lower quartile over steps, since other programs only add to it. Not covered: the host cost of a GPU
driver, and several processes.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from common.provenance import provenance
from common.script import arguments, keep

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

ROWS = (4, 64, 256)
DRAFT, VOCABULARY, CONTEXT = 8, 512, 1024
PROMPT, LENGTH, OTHER = 64, 384, 0.01  #: tokens per prompt and turn; share of tokens that differ from the stored turn
EPOCHS = 8  #: of ``drafting``, after the epoch that fills the store
PASS = 0.02  #: seconds per step on the drafter's clock, so that its budget finds drafts worthwhile
ROUNDS, STEPS = 60, 8  #: of ``off``: rounds, and steps of each engine per round
QUANTILE = 0.25


class Compiled:
    """Count the CPU seconds of kernels that run without the interpreter's lock."""

    def __init__(self) -> None:
        self.seconds = 0.0
        for room, names in (("store.forest", ("advance", "help_out")), ("budget.draft_budget", ("_choose", "_learn"))):
            module = importlib.import_module(f"turntree.spec_tree.{room}")
            for name in names:
                setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, kernel: Any) -> Any:
        def run(*given: Any) -> Any:
            began = time.thread_time()
            try:
                return kernel(*given)
            finally:
                self.seconds += time.thread_time() - began

        return run


class Passed:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...


class Runner:
    """The parts of vLLM's model runner that a drafter uses, with steps that verify its drafts."""

    def __init__(self, rows: int, way: str) -> None:
        import torch
        from vllm_runner import parameters, vllm_config

        from turntree.agents.engines.drafting import session
        from turntree.agents.engines.request_wire import KEY, to_wire
        from turntree.agents.engines.vllm.drafter import ForestDrafter
        from turntree.agents.engines.vllm.overlap import drafter as overlapped
        from turntree.agents.engines.vllm.overlap import ngram_interface
        from turntree.agents.engines.vllm.settings import DrafterSettings
        from turntree.spec_tree import DialogueState, ForestConfig

        self.clock = 0.0
        for timed in (session, overlapped):
            timed.time = SimpleNamespace(perf_counter=lambda: self.clock)
        module = SimpleNamespace()
        ngram_interface._module = lambda: module
        self.device, self.max_num_reqs = SimpleNamespace(type="cuda"), rows
        self.max_model_len = self.effective_drafter_max_model_len = CONTEXT
        self.execute_model = self.sample_tokens = self._prepare_input_ids = self.take_draft_token_ids = print
        self.rng = np.random.default_rng(rows)
        self.stored = self.rng.integers(3, VOCABULARY, (rows, LENGTH)).astype(np.int32)
        self.tokens = np.zeros((rows, CONTEXT), np.int32)
        states = [DialogueState(exact=row, task=str(row)) for row in range(rows)]
        self.asked = [parameters(max_tokens=LENGTH, extra_args={KEY: to_wire(state)}) for state in states]
        config = vllm_config(DrafterSettings(forest=ForestConfig(threads=1)), DRAFT)
        config.model_config.max_model_len = CONTEXT
        config.scheduler_config = SimpleNamespace(max_num_batched_tokens=8192, max_num_seqs=rows)
        self.beside = way == "beside"
        self.drafter: Any = (
            overlapped.OverlappedDrafter(config, torch.device("cpu")) if self.beside else ForestDrafter(config)
        )
        self.drafter.bind(self)
        self.drafter.load_model()
        self.done = np.zeros(rows, np.int64)
        self.drafts: list[list[int]] = [[]] * rows

    def begin(self, number: int) -> None:
        # The stored turns, with some other tokens.
        other = self.rng.random(self.stored.shape) < (OTHER if number else 0)
        self.script = np.where(other, self.rng.integers(3, VOCABULARY, self.stored.shape), self.stored)
        ids = [f"{number}-{row}" for row in range(len(self.stored))]
        self.input_batch = SimpleNamespace(req_ids=ids)
        self.requests = {
            name: SimpleNamespace(
                prompt_token_ids=[3 + row] * PROMPT,
                sampling_params=asked,
                output_token_ids=[],
                num_computed_tokens=PROMPT,
            )
            for row, (name, asked) in enumerate(zip(ids, self.asked, strict=True))
        }
        self.done[:], self.drafts = 0, [[]] * len(ids)

    def step(self) -> tuple[float, int]:
        """Run one step of all requests; return the drafter's CPU seconds and the number of tokens it was given."""
        sampled = []
        for row, draft in enumerate(self.drafts):
            rest = self.script[row, self.done[row] : self.done[row] + DRAFT + 1].tolist()
            hits = 0
            while hits < min(len(draft), len(rest)) and draft[hits] == rest[hits]:
                hits += 1
            new = rest[: hits + 1]
            begin = PROMPT + self.done[row]
            self.tokens[row, begin : begin + len(new)] = new
            self.done[row] += len(new)
            sampled.append(new)
        return (self._ask_beside if self.beside else self._ask_between)(sampled), sum(map(len, sampled))

    def _ask_between(self, sampled: list[list[int]]) -> float:
        ends = (PROMPT + self.done).astype(np.int32)
        self.clock += PASS
        began = time.process_time()
        self.drafts = self.drafter.propose(sampled, ends, self.tokens)
        self.drafter.settle()
        return time.process_time() - began

    def _ask_beside(self, sampled: list[list[int]]) -> float:
        import torch

        wide, ids = np.full((len(sampled), DRAFT + 1), -1, np.int32), list(self.input_batch.req_ids)
        for row, tokens in zip(wide, sampled, strict=True):
            row[: len(tokens)] = tokens
        output = SimpleNamespace(
            _model_runner_output=SimpleNamespace(req_ids=ids),
            sampled_token_ids_cpu=torch.from_numpy(wide),
            async_copy_ready_event=Passed(),
            _invalid_req_indices=[],
        )
        planned = SimpleNamespace(
            scheduled_spec_decode_tokens={name: [-1] * DRAFT for name in ids},
            num_scheduled_tokens=dict.fromkeys(ids, 1 + DRAFT),
            total_num_scheduled_tokens=len(ids) * (1 + DRAFT),
        )
        self.clock += PASS
        began = time.process_time()
        self.drafter.record(output, DRAFT, 0)
        self.drafter.trim(planned)
        self.drafter.upload()
        spent = time.process_time() - began
        lengths = self.drafter._lengths.tolist()
        self.drafts = [draft[:length] for draft, length in zip(self.drafter._drafts.tolist(), lengths, strict=True)]
        return spent


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """Milliseconds of CPU time per step."""

    way: str
    rows: int
    whole: float
    with_the_lock: float
    tokens: float  #: sampled per request and step


def drafting(rows: int, way: str, compiled: Compiled) -> Drafting:
    runner = Runner(rows, way)
    spent: list[tuple[float, float, float]] = []
    for number in range(1 + EPOCHS):
        runner.begin(number)
        steps = 0
        while (runner.done < LENGTH).any():
            free = compiled.seconds
            whole, tokens = runner.step()
            steps += 1
            if number and steps > 2 and (runner.done < LENGTH).all():
                spent.append((whole, whole - (compiled.seconds - free), tokens / rows))
    whole, lock = (1e3 * np.quantile([one[i] for one in spent], QUANTILE) for i in (0, 1))
    tokens = float(np.mean([one[2] for one in spent]))
    return Drafting(way=way, rows=rows, whole=round(whole, 3), with_the_lock=round(lock, 3), tokens=round(tokens, 2))


@dataclass(frozen=True, kw_only=True)
class Off:
    """Milliseconds of CPU time per engine step."""

    rows: int
    with_drafter: float
    without: float
    ratio: float  #: median over rounds


def off() -> list[Off]:
    from overlapped_vllm import MEMORY, overlap, scheduler_of, vllm_here
    from tiny_llama import random_llama

    from turntree.agents.engines.vllm.config import on_accelerator
    from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config
    from turntree.spec_tree.budget.draft_switch import DraftSwitch

    class Never(DraftSwitch):
        # Decides and learns like ``DraftSwitch``, but never drafts.

        def wants(self, rows: int, *, now: float) -> bool:
            super().wants(rows, now=now)
            return False

    with tempfile.TemporaryDirectory() as folder, vllm_here() as patch:
        import torch
        from vllm import LLM, SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.worker import cpu_worker  # noqa: F401  # before ``overlap``: it replaces torch's events

        torch.set_num_threads(1)
        shape = {"head_dim": 32, "num_hidden_layers": 1, "max_position_embeddings": CONTEXT}
        random_llama(VOCABULARY, **shape).save_pretrained(folder)
        overlap(patch)
        plain: dict[str, Any] = MEMORY | {
            "model": folder,
            "dtype": "float32",
            "max_num_seqs": max(ROWS),
            "max_model_len": CONTEXT,
            "max_num_batched_tokens": 8192,
            "enforce_eager": True,
            "skip_tokenizer_init": True,
            "logprobs_mode": "processed_logprobs",
            "kv_cache_memory_bytes": 1 << 28,
        }
        ours = plain | {"speculative_config": speculative_config(DRAFT)}
        ours = on_accelerator(ours | {"additional_config": DrafterSettings().to_additional_config()}, rows=256, ranks=1)
        del ours["compilation_config"]
        engines = [LLM(**ours), LLM(**plain)]
        scheduler_of(engines[0])._switch = Never()
        fixed = {"ignore_eos": True, "detokenize": False, "flat_logprobs": True, "logprobs": 0}
        fixed |= {"output_kind": RequestOutputKind.FINAL_ONLY}
        found = []
        for rows in ROWS:
            length = ROUNDS * STEPS + 64
            for engine in engines:
                for row in range(rows):
                    sampling = SamplingParams(max_tokens=length, seed=row, **fixed)
                    engine.llm_engine.add_request(f"{rows}-{row}", {"prompt_token_ids": [3 + row] * 8}, sampling)
                for _ in range(40):  # the prompts, and what a new batch costs
                    engine.llm_engine.step()
            spent: tuple[list[float], list[float]] = ([], [])
            for number in range(ROUNDS):
                for which in (0, 1) if number % 2 else (1, 0):
                    began = time.process_time()
                    for _ in range(STEPS):
                        engines[which].llm_engine.step()
                    spent[which].append((time.process_time() - began) / STEPS)
            for engine in engines:
                while engine.llm_engine.has_unfinished_requests():
                    engine.llm_engine.step()
            ms = [1e3 * float(np.quantile(times, QUANTILE)) for times in spent]
            ratio = float(np.median(np.divide(*spent)))
            found.append(Off(rows=rows, with_drafter=round(ms[0], 3), without=round(ms[1], 3), ratio=round(ratio, 3)))
            print(f"{rows:9} {ms[0]:14.3f} {ms[1]:8.3f} {ms[0] / ms[1]:9.3f} {ratio:16.3f}", flush=True)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=["drafting", "off"], default=["drafting", "off"])
    options = parser.parse_args()
    report: dict[str, Any] = provenance(["vllm", "torch", "numpy", "numba"])
    print(report["machine"], report["command"], sep="\n")
    if "off" in options.only:
        print(f"{'requests':>9} {'drafter, off':>14} {'without':>8} {'ratio':>9} {'median of rounds':>16}")
        report["off"] = [asdict(one) for one in off()]
    if "drafting" in options.only:  # last, as it replaces the clock of the drafter and the module that it changes
        compiled = Compiled()
        print(f"{'drafter':10}{'requests':>9} {'ms a step':>10} {'with the lock':>14} {'tokens a request':>17}")
        report["drafting"] = []
        for way in ("between", "beside"):
            for rows in ROWS:
                one = drafting(rows, way, compiled)
                report["drafting"].append(asdict(one))
                print(f"{way:10}{rows:9} {one.whole:10.3f} {one.with_the_lock:14.3f} {one.tokens:17.2f}", flush=True)
    keep(options.json, report)


if __name__ == "__main__":
    main()
