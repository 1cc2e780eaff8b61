"""Speculative decoding with the local engine: the same seeds with and without drafts.

Turns sampled at a dialogue state become drafts for the next turns at this state. The tokens
are the same, with fewer forward passes. Both ways are warmed up before they are timed, since
first passes and first drafts wait for memory and compilers.

    python examples/speculate_local.py MODEL [--epochs 3] [--samples 4]
"""

import argparse
import asyncio
from time import perf_counter
from typing import NamedTuple

from turntree.agents import Renderer, Sampling, rollout
from turntree.agents.errors import needed_packages
from turntree.envs import Limits, make

with needed_packages("local"):
    from transformers import AutoTokenizer

    from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation


class Played(NamedTuple):
    tokens: list[tuple[int, ...]]
    tokens_per_forward_pass: float
    seconds: float


async def play(
    engine: LocalEngine, renderer: Renderer, *, epochs: int, samples: int, max_tokens: int, index: int = 0
) -> Played:
    before, began, sampled = engine.stats(), perf_counter(), []
    limits = Limits(max_turns=3, max_turn_tokens=max_tokens, max_context_tokens=512)
    for _ in range(epochs):  # the same seeds each time: an upper bound of what comes back in training
        for seed in range(samples):
            options = Sampling(temperature=0.7, seed=seed)
            env = make("turntree/Arithmetic-v0")
            episode = await rollout(env, engine, renderer, limits, index=index, sampling=options)
            sampled += [turn.completion.token_ids for turn in episode.turns]
    return Played(sampled, (engine.stats() - before).tokens_per_forward_pass, perf_counter() - began)


def main(arguments: list[str] | None = None) -> tuple[Played, Played]:
    parser = argparse.ArgumentParser(description="The same seeds with and without drafts.")
    parser.add_argument("model")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--always", action="store_true", help="draft whether or not the measured steps say it pays")
    args = parser.parse_args(arguments)

    renderer = Renderer(AutoTokenizer.from_pretrained(args.model))
    results = []
    for speculation in (None, Speculation(adaptive=not args.always)):
        config = LocalEngineConfig(max_batch=4, max_context=512, dtype=args.dtype, speculation=speculation)
        with LocalEngine.from_pretrained(args.model, config=config) as engine:
            asyncio.run(play(engine, renderer, epochs=2, samples=1, max_tokens=8, index=1))  # warms up, another task
            amount = {"epochs": args.epochs, "samples": args.samples, "max_tokens": args.max_tokens}
            results.append(asyncio.run(play(engine, renderer, **amount)))
    plain, drafted = results
    print(f"without drafts: {plain.tokens_per_forward_pass:.2f} tokens per forward pass, {plain.seconds:.1f} s")
    print(f"with drafts:    {drafted.tokens_per_forward_pass:.2f} tokens per forward pass, {drafted.seconds:.1f} s")
    print("the same tokens" if plain.tokens == drafted.tokens else "tokens differ by rounding: try --dtype float64")
    return plain, drafted


if __name__ == "__main__":
    main()
