"""Compare the local engine with and without drafts, ``transformers``' ``generate`` and vLLM's CPU build.

Every ratio is measured in one run: for each batch size the same prompts and seeds go through ``generate`` (left-padded,
its own cache), through the engine without drafts, and twice through the engine with drafts. The first epoch fills the
store; the second is what a trainer sees from then on. Rounds are interleaved, and the median of ``--repeats`` rounds
counts. ``--vllm`` adds vLLM without drafts in its own process, and needs an environment that has it
(``scripts/venv.sh vllm-0.28``).

    python benchmarks/engine.py --model DIR [--batches 1 4 8 16] [--vllm] [--json OUT]
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from common.provenance import provenance
from common.script import arguments, keep, show, titled
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllm_drafters import CPU

from turntree.agents.engines.local import LocalEngineConfig, Speculation
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.protocol import Sampling
from turntree.spec_tree import DialogueState, ForestConfig, SpecForest

QUESTIONS = [
    "A baker sells 12 loaves in the morning and twice as many in the afternoon. How many loaves in all?",
    "Tom has 48 marbles and gives a quarter of them away. How many are left?",
    "A train goes 60 miles an hour for 3 hours and 40 miles an hour for 2. How far does it go?",
    "Each of 7 boxes holds 9 pens. 15 pens are broken. How many pens can be used?",
    "A shirt costs 20 dollars and is sold at 15 percent off. What is the price?",
    "Lena reads 24 pages a day. How many days does she need for a book of 312 pages?",
    "A garden is 14 meters long and 9 meters wide. How long is the fence around it?",
    "Three friends share 87 cards equally. How many does each get?",
]


@dataclass
class Row:
    batch: int
    way: str
    tokens_per_second: float
    tokens_per_forward_pass: float
    ratio_to_plain: float
    seconds: float
    step_ms: float | None  #: milliseconds per step of the local engine; ``None`` for others
    draft_share: float | None  #: share of the step spent on drafting


def run_engine(core: EngineCore, prompts: list[list[int]], sampling: Sampling, tasks: list[int], seed: int) -> None:
    for i, prompt in enumerate(prompts):
        state = DialogueState.from_tokens(prompt, task=str(tasks[i]), env="benchmark")
        core.add(Request(prompt=prompt, sampling=sampling, state=state, seed=seed + i, deliver=lambda _: None))
    while core.busy:
        core.step()


def question_prompts(tokenizer: Any) -> list[list[int]]:
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
            )["input_ids"]
        )
        for question in QUESTIONS
    ]


def measure(args: argparse.Namespace, batch: int) -> list[Row]:
    questions = question_prompts(AutoTokenizer.from_pretrained(args.model))
    tasks = [i % len(questions) for i in range(batch)]
    return compare(args, [questions[task] for task in tasks], tasks)


def compare(args: argparse.Namespace, prompts: list[list[int]], tasks: list[int]) -> list[Row]:
    """Measure all ways with one turn per prompt, all at once.

    Args:
        args: The command line's.
        prompts: Token ids.
        tasks: The task of each prompt; turns of a task are drafted from each other.
    """
    batch, dtype = len(prompts), getattr(torch, args.dtype)
    reference = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(args.device).eval()
    policy = Policy.load(args.model, dtype=args.dtype, device=args.device)
    sampling = Sampling(temperature=args.temperature, max_tokens=args.tokens)
    size = {"max_batch": batch, "max_context": max(map(len, prompts)) + args.tokens + 1, "dtype": args.dtype}
    drafts = Speculation(max_nodes=args.nodes, min_probability=args.min_probability, chain=args.chain)
    plain = EngineCore(policy, LocalEngineConfig(**size, speculation=None), None)
    drafting = EngineCore(policy, LocalEngineConfig(**size, speculation=drafts), SpecForest(ForestConfig()))

    width = max(map(len, prompts))
    pad = reference.config.pad_token_id or 0
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=args.device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=args.device)

    def generate() -> None:
        torch.manual_seed(args.seed)
        reference.generate(
            ids, attention_mask=mask, do_sample=args.temperature > 0, temperature=args.temperature or None,
            top_k=0, max_new_tokens=args.tokens, min_new_tokens=args.tokens, pad_token_id=pad,
        )  # fmt: skip

    def epoch(core: EngineCore, seed: int) -> None:
        core.forget_prefixes()
        run_engine(core, prompts, sampling, tasks, seed)

    run: dict[str, Callable[[int], None]] = {
        "generate": lambda seed: generate(),
        "engine": lambda seed: epoch(plain, seed),
        "engine + drafts": lambda seed: epoch(drafting, seed),
    }
    if args.vllm:
        run["vLLM"] = vllm_epoch(args, prompts)
    seconds: dict[str, list[float]] = {way: [] for way in run}
    for way in run:
        run[way](args.seed)  # warm up; fills the store
    before = {"engine": plain.stats.copy(), "engine + drafts": drafting.stats.copy()}
    for repeat in range(1, args.repeats + 1):
        for way in list(run)[:: 1 if repeat % 2 else -1]:
            began = time.perf_counter()
            run[way](args.seed + 1000 * repeat)
            seconds[way].append(time.perf_counter() - began)
    spent = {"engine": plain.stats - before["engine"], "engine + drafts": drafting.stats - before["engine + drafts"]}
    base = statistics.median(seconds["engine"])
    run.clear()
    gc.collect()  # ends vLLM's process
    return [
        Row(
            batch=batch,
            way=way,
            tokens_per_second=batch * args.tokens / statistics.median(times),
            tokens_per_forward_pass=spent[way].tokens_per_forward_pass if way in spent else 1.0,
            ratio_to_plain=base / statistics.median(times),
            seconds=statistics.median(times),
            step_ms=1e3 * spent[way].seconds / spent[way].forward_passes if way in spent else None,
            draft_share=spent[way].draft_seconds / spent[way].seconds if way in spent else None,
        )
        for way, times in seconds.items()
    ]


def vllm_epoch(args: argparse.Namespace, prompts: list[list[int]]) -> Callable[[int], None]:
    os.environ.update(CPU | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})  # all cores, as the other ways have them
    from vllm import LLM, SamplingParams

    engine = LLM(
        args.model,
        dtype=args.dtype,
        skip_tokenizer_init=True,
        max_model_len=max(map(len, prompts)) + args.tokens + 1,
        max_num_seqs=len(prompts),
    )

    def epoch(seed: int) -> None:
        engine.reset_prefix_cache()
        sampling = SamplingParams(
            temperature=args.temperature, max_tokens=args.tokens, ignore_eos=True, detokenize=False
        )
        answers = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        assert all(len(answer.outputs[0].token_ids) == args.tokens for answer in answers)

    return epoch


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", required=True, help="directory in Hugging Face format")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=48, help="sampled per request")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--min-probability", type=float, default=0.4)
    parser.add_argument("--chain", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vllm", action="store_true", help="against vLLM too")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = [row for batch in args.batches for row in measure(args, batch)]
    about = provenance(["torch", "transformers", "vllm"], device=args.device)
    columns = ("batch", "way", "tokens/s", "tokens per forward pass", "speed / engine without drafts")
    shown = (
        (
            row.batch,
            row.way,
            *(f"{x:.2f}" for x in (row.tokens_per_second, row.tokens_per_forward_pass, row.ratio_to_plain)),
        )
        for row in rows
    )
    show(f"{titled(about)}; {torch.get_num_threads()} threads", columns, shown, words=("way",))
    keep(args.json, {**about, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
