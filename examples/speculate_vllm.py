"""Speculative decoding inside vLLM: the same tasks and seeds with and without turntree's drafter.

Turns sampled at a dialogue state become drafts for the next turns at this state. The tokens
are the same; from the second epoch on, the engine needs fewer passes.

    python examples/speculate_vllm.py MODEL [--epochs 3] [--tasks 4] [--samples 4]
"""

import argparse
import asyncio
import json
from time import perf_counter
from typing import NamedTuple

from turntree.agents import Evaluation, Renderer, Sampling, evaluate
from turntree.agents.errors import needed_packages
from turntree.envs import Limits, make

with needed_packages("vllm"):
    from transformers import AutoTokenizer

    from turntree.agents.engines.vllm.config import VllmEngineConfig
    from turntree.agents.engines.vllm.engine import VllmEngine
    from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config


class Played(NamedTuple):
    tokens: list[tuple[int, ...]]
    tokens_per_forward_pass: list[float]
    seconds: float


def play(engine: VllmEngine, renderer: Renderer, args: argparse.Namespace) -> Played:
    limits = Limits(max_turns=3, max_turn_tokens=args.max_tokens, max_context_tokens=args.max_context)
    began, sampled, per_pass = perf_counter(), [], []
    for _ in range(args.epochs):  # the same seeds each time: an upper bound of what comes back in training
        episodes = asyncio.run(
            evaluate(
                lambda: make("turntree/Arithmetic-v0"),
                engine,
                renderer,
                range(args.tasks),
                limits=limits,
                sampling=Sampling(temperature=0.7),
                samples=args.samples,
            )
        )
        epoch = Evaluation.of(episodes)
        if epoch.failures:
            raise SystemExit(next(episode.failure for episode in episodes if episode.failure))
        sampled += [turn.completion.token_ids for episode in episodes for turn in episode.turns]
        per_pass.append(epoch.tokens_per_forward_pass)
    return Played(sampled, per_pass, perf_counter() - began)


def main(arguments: list[str] | None = None) -> tuple[Played, Played]:
    parser = argparse.ArgumentParser(description="The same tasks and seeds in vLLM with and without drafts.")
    parser.add_argument("model")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64, help="of one turn")
    parser.add_argument("--max-context", type=int, default=1024)
    parser.add_argument("--dtype", default="auto", help="the tokens are the same where rounding is fine: float32")
    parser.add_argument("--always", action="store_true", help="draft whether or not the measured steps say it pays")
    parser.add_argument("--engine-args", type=json.loads, default={}, help="further ones of vLLM's, a JSON object")
    args = parser.parse_args(arguments)

    renderer = Renderer(AutoTokenizer.from_pretrained(args.model))
    settings = DrafterSettings(adaptive=not args.always)
    results = []
    for drafts in (None, speculative_config(max_tokens=8)):
        config = VllmEngineConfig(
            max_batch=16,
            max_context=args.max_context,
            dtype=args.dtype,
            speculative_config=drafts,
            engine_args={**args.engine_args, "additional_config": settings.to_additional_config()},
        )
        with VllmEngine(args.model, config=config) as engine:
            results.append(play(engine, renderer, args))
    plain, drafted = results
    for name, played in (("without drafts", plain), ("with drafts", drafted)):
        per_pass = ", ".join(f"{value:.2f}" for value in played.tokens_per_forward_pass)
        print(f"{name}: {per_pass} tokens per forward pass in the epochs, {played.seconds:.1f} s")
    print("the same tokens" if plain.tokens == drafted.tokens else "tokens differ by rounding: try --dtype float32")
    return plain, drafted


if __name__ == "__main__":
    with needed_packages("vllm"):
        main()
