"""Compare the race's kernel with its reference: the bits of its noise and the tokens that it draws.

    TRITON_INTERPRET=1 python benchmarks/race_kernel.py --block 32768   # on the CPU, in Triton's interpreter
    python benchmarks/race_kernel.py --device cuda --rows 2304

Generator ``n`` determines seed, position and logits of row ``n``: peaked and flat distributions in turn, half of them
with most tokens masked. Tokens must equal those of the compiled race on the same probabilities. They are also compared
with the exact tokens of the logits: the earliest of ``E / exp(logit)`` in float64. Figures are added to those of
``--out``.

Not covered: speed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from common.provenance import provenance
from common.script import arguments, keep

from turntree.agents.engines.drafting import race_kernel
from turntree.agents.engines.drafting.race import race
from turntree.spec_tree.rules.noise import exponential

SCALES = (0.1, 1.0, 3.0, 12.0)  #: standard deviations of the logits
AT_ONCE = 16  #: rows compared at once, for memory


@triton.jit
def _noise(out, seeds, positions, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    begin = race_kernel.stream(tl.load(seeds + row).to(tl.uint64, bitcast=True), tl.load(positions + row).to(tl.uint64))
    for start in range(0, size, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        clocks = race_kernel.minus_log(race_kernel.uniform(begin, tokens.to(tl.uint64)))
        tl.store(out + row * size + tokens, clocks, mask=tokens < size)


def rows_of(first: int, count: int, vocabulary: int) -> tuple[Any, Any, torch.Tensor]:
    seeds, positions = np.empty(count, np.uint64), np.empty(count, np.int64)
    logits = torch.empty(count, vocabulary)
    for index, row in enumerate(range(first, first + count)):
        rng = np.random.default_rng(row)
        seeds[index], positions[index] = rng.integers(1 << 64, dtype=np.uint64), rng.integers(100_000)
        logits[index] = torch.from_numpy(rng.normal(scale=SCALES[row % len(SCALES)], size=vocabulary))
        if row % 2:
            logits[index, torch.from_numpy(rng.random(vocabulary) > 0.001)] = float("-inf")
            logits[index, -1] = 0.0
    return seeds, positions, logits


def compared(first: int, count: int, vocabulary: int, *, device: str, block: int) -> dict[str, int]:
    seeds, positions, logits = rows_of(first, count, vocabulary)
    on = [torch.from_numpy(one).to(device) for one in (seeds.view(np.int64), positions)]
    wanted = exponential(seeds[:, None], positions[:, None], np.arange(vocabulary)[None])
    ours = torch.empty(count, vocabulary, dtype=torch.float64, device=device)
    _noise[(count,)](ours, *on, vocabulary, BLOCK=block, enable_fp_fusion=False)
    differ = ours.cpu().numpy().view(np.int64) != wanted.view(np.int64)

    probabilities = logits.softmax(-1, dtype=torch.float32)
    by_kernel = race_kernel.race_rows(probabilities.to(device), *on, logits=False).cpu()
    plain = race(probabilities, seeds, positions)
    weights = np.exp(logits.double().numpy() - logits.double().amax(-1, keepdim=True).numpy())
    with np.errstate(divide="ignore"):
        exact = torch.from_numpy((wanted / weights).argmin(-1))
    of_logits = race_kernel.race_rows(logits.to(device), *on, logits=True).cpu()
    return {
        "rows": count,
        "clocks": differ.size,
        "clocks_with_other_bits": int(differ.sum()),
        "other_tokens_of_probabilities": int((by_kernel != plain).sum()),
        "other_tokens_of_logits": int((of_logits != exact).sum()),
        "other_tokens_than_by_softmax_in_float32": int((of_logits != plain).sum()),
    }


def parts(first: int, rows: int) -> Iterator[tuple[int, int]]:
    for begin in range(first, first + rows, AT_ONCE):
        yield begin, min(AT_ONCE, first + rows - begin)


def main() -> None:
    parser = arguments(__doc__, "--out")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first row")
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--block", type=int, default=race_kernel.BLOCK, help="tokens at once")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("Triton runs on the CPU in its interpreter alone; set TRITON_INTERPRET=1, or use --device cuda")
    race_kernel.BLOCK = args.block
    total: dict[str, int] = {}
    if args.out and args.out.exists():
        total = json.loads(args.out.read_text())["compared"]
    for first, count in parts(args.first, args.rows):
        found = compared(first, count, args.vocabulary, device=args.device, block=args.block)
        total = {name: total.get(name, 0) + value for name, value in found.items()}
    for name, value in total.items():
        print(f"{name:<42}{value:>14,}")
    about = provenance(("torch", "triton", "numpy"), device=args.device)
    settings = {"vocabulary": args.vocabulary, "block": args.block, "interpreter": args.device == "cpu"}
    keep(args.out, {**about, "settings": settings, "compared": total})
    differing = [name for name in total if name.startswith(("clocks_with", "other_tokens_of"))]
    sys.exit(any(total[name] for name in differing))


if __name__ == "__main__":
    main()
