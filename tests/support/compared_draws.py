"""Compare ``verify_kernel`` with its reference, as a program: TRITON_INTERPRET must be set before Triton is imported.

    TRITON_INTERPRET=1 python tests/support/compared_draws.py cpu "" "CODE"...

The first argument is the device. Each further argument is code to run before a comparison, for example to plant a
fault. Each comparison runs in its own fork and prints one line of JSON.
"""

import json
import os
import sys

import fused_draws
import numpy as np
import torch
import triton.language  # noqa: F401  # the longest part of a comparison is to import it

VOCABULARY = 4500  #: not a multiple of the kernel's block of 2048 tokens
TEMPERATURES = (1.0, 0.7, 0.0, 1.3)
LENGTHS = (3, 0, 5, 1)
TOKENS = 40
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def compared(number: int, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Count the differences in one random batch; its logits have a stride and masked tokens."""
    from turntree.agents.engines.drafting import verify_kernel

    make = np.random.default_rng(number)
    ends = torch.tensor(LENGTHS, dtype=torch.int32).add(1).cumsum(0, dtype=torch.int32)
    width, count, requests = max(LENGTHS) + 1, int(ends[-1]), len(LENGTHS)
    scales = make.choice([0.1, 1.0, 3.0, 12.0], size=(count, 1))
    logits = torch.from_numpy(make.normal(size=(count, VOCABULARY + 77)) * scales).to(dtype)[:, :VOCABULARY]
    logits[::3, 7:-9] = float("-inf")
    state = np.stack([make.integers(1 << 63, size=requests), make.integers(-20, 20, size=requests)])
    bits = np.array(TEMPERATURES, np.float32).astype(np.float64).view(np.int64)
    rows = torch.from_numpy(np.concatenate([state, bits[None]]))
    positions = torch.from_numpy(make.integers(20, 1000, size=TOKENS))
    indices = torch.from_numpy(make.permutation(TOKENS)[:count].astype(np.int32))
    drafted = {"ends": ends, "width": width}
    wanted = fused_draws.draw_rows(logits, rows, positions, indices, **drafted)
    drafts = torch.cat([part[:-1] for part in wanted[0].tensor_split(ends[:-1].long())])
    drafts[2] += 1  # the third token of the first request, which has agreed so far
    kept = fused_draws.match_rows(wanted, drafts, ends, width)
    plain = fused_draws.draw_rows(logits[:requests], rows, positions, indices[:requests])

    def on(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [one.to(device) for one in tensors]

    theirs = dict(zip(drafted, (*on(ends), width), strict=True))
    found = verify_kernel.draw_rows(*on(logits, rows, positions, indices), **theirs).cpu()
    ours = verify_kernel.match_rows(*on(wanted, drafts, ends), width).cpu()
    # As in a step without drafts: the index behind each request's last token.
    alone = verify_kernel.draw_rows(*on(logits[:requests], rows, positions, indices[:requests] + 1), shift=-1).cpu()
    return {
        "rows": count + requests,
        "other_tokens": int((found[0] != wanted[0]).sum() + (alone[0] != plain[0]).sum()),
        "other_ranks": int((found[2] != wanted[2]).sum()),
        "other_kept": int((ours != kept).sum()),
        "kept": int((ours[0] >= 0).sum()),
        "logprob_error": float((found[1].view(torch.float32) - wanted[1].view(torch.float32)).abs().max()),
    }


def told(code: str, device: str) -> str:
    exec(code)
    dtypes = DTYPES[:1] if code else DTYPES
    parts = [compared(number, dtype, device) for number, dtype in enumerate(dtypes)]
    worst = max(part["logprob_error"] for part in parts)
    return json.dumps({**{name: sum(part[name] for part in parts) for name in parts[0]}, "logprob_error": worst})


if __name__ == "__main__":
    for code in sys.argv[2:]:
        if not os.fork():
            print(told(code, sys.argv[1]), flush=True)
            os._exit(0)
        if status := os.waitstatus_to_exitcode(os.wait()[1]):
            sys.exit(status)
