"""Share of an interrupted turn's tokens that the policy of one more update draws with the same noise.

A policy samples turns of arithmetic tasks. Half of them teach it: one step of AdamW, on advantages of +-1 that
alternate between the samples of a task, the gradient's norm at most 1, as in a training. The other half are
interrupted at a random token each, and judged by the updated weights (``InterruptedTurns``). ``--updates`` does so
again and again, with one optimizer and new noise, and counts the later half of the updates: Adam's first step moves
every weight by about the learning rate, more than a later one of a training does.

    python benchmarks/async_survival.py [--model DIR] [--rates 1e-6 1e-5 1e-4] [--updates 1] [--json FILE]

Without ``--model`` it is a random Llama of some hundred thousand parameters, which hesitates between all tokens.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common.provenance import command_line
from common.script import arguments, keep

from turntree.agents.demo.tokenizer import build_tokenizer
from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.engines.protocol import Completion, Sampling, TurnRequest
from turntree.agents.evaluation.machine import hardware
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.tool_format import opening
from turntree.agents.resuming.interrupted_turns import ResumeCounts, judge
from turntree.envs.registry import make


async def turns_of(engine: LocalEngine, requests: list[TurnRequest]) -> list[Completion]:
    """A turn for each request."""
    return await asyncio.gather(*map(engine.generate, requests))


def updated(model: Any, optimizer: Any, requests: list[TurnRequest], turns: list[Completion]) -> None:
    """One step of the policy on its turns, in place."""
    tokens = sum(len(turn.token_ids) for turn in turns)
    for number, (request, turn) in enumerate(zip(requests, turns, strict=True)):
        said = torch.tensor(turn.token_ids)
        logits = model(torch.tensor([[*request.prompt_ids, *turn.token_ids]])).logits[0]
        law = logits[len(request.prompt_ids) - 1 : -1].float().log_softmax(-1)
        advantage = 1.0 if number % 2 else -1.0
        (-advantage * law.gather(1, said[:, None]).sum() / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def with_seeds(requests: list[TurnRequest], first: int) -> list[TurnRequest]:
    """The requests, with seeds from ``first`` on."""
    return [replace(one, sampling=replace(one.sampling, seed=seed)) for seed, one in enumerate(requests, start=first)]


async def survivals(
    model: Any, requests: list[TurnRequest], rates: list[float], updates: int
) -> list[dict[str, float]]:
    """What an update leaves of interrupted turns, by its learning rate."""
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    config = LocalEngineConfig(max_batch=16, max_context=1024, dtype="float32", speculation=None)
    rows, half = [], len(requests) // 2
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with LocalEngine.from_pretrained(folder, config=config) as engine:
            for rate in rates:
                optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
                counts, whole = ResumeCounts(), 0
                for number in range(updates):
                    asked = with_seeds(requests, number * len(requests))
                    turns = await turns_of(engine, asked)
                    updated(model, optimizer, asked[:half], turns[:half])
                    engine.update_weights(model.state_dict().items())
                    if number >= updates // 2:
                        whole += await survival(engine, asked[half:], turns[half:], counts)
                    print(f"{rate:g}, update {number + 1}: {counts.kept} of {counts.offered}", flush=True)
                other = counts.reverified_turns - whole
                rows.append(
                    {  # the last: the chance that a token differs, of those up to the first that does
                        "rate": rate,
                        "kept": counts.kept / counts.offered,
                        "whole": whole / counts.reverified_turns,
                        "tokens": counts.offered,
                        "other_per_token": other / (counts.kept + other),
                    }
                )
                print(rows[-1], flush=True)
                model.load_state_dict(weights)
                engine.update_weights(model.state_dict().items())
    return rows


async def survival(
    engine: LocalEngine, requests: list[TurnRequest], turns: list[Completion], counts: ResumeCounts
) -> int:
    """Count what the engine's policy keeps of turns of another one, each interrupted at a random token; returns how
    many it keeps whole."""
    rng, whole = np.random.default_rng(requests[0].sampling.seed), 0
    for request, turn in zip(requests, turns, strict=True):
        turn_draft = turn.token_ids[: int(rng.integers(1, len(turn.token_ids) + 1))]
        before = counts.kept
        # No more is sampled than the judgement itself draws.
        asked = replace(request, sampling=replace(request.sampling, max_tokens=len(turn_draft)))
        await judge(engine, asked, turn_draft, counts)
        whole += counts.kept - before == len(turn_draft)
    return whole


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6, 3e-6, 1e-5, 3e-5, 1e-4])
    parser.add_argument("--turns", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--updates", type=int, default=1)
    args = parser.parse_args()
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if args.model is None:
        tokenizer = build_tokenizer()
        size = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
        model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=1024, **size))
    else:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    env, renderer, requests = make("turntree/Arithmetic-v0"), Renderer(tokenizer), []
    for number in range(args.turns):
        _, info = env.reset(seed=number // 4, options={"index": number // 4})
        how = Sampling(max_tokens=args.max_tokens, stop_token_ids=tuple(renderer.stop_token_ids))
        prompt = opening(env, renderer, info["messages"], info["tools"])
        requests.append(TurnRequest(prompt, replace(how, seed=number)))
    rows = asyncio.run(survivals(model, requests, args.rates, args.updates))
    name = "tiny" if args.model is None else args.model.name
    keep(args.json, {"machine": hardware(), "command": command_line(), "model": name, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
