"""SPEC-RL against tree drafts: the same tasks in two epochs, five ways to use what epoch one sampled.

The weights stay as they are between the epochs, so what is reused is an upper bound. The level says what each way
promises (docs/exactness.md).

    python examples/reuse_and_trees.py MODEL [--tasks 2] [--samples 4]
"""

import argparse
import asyncio

from turntree.agents import PrefixReuse, Renderer, ReuseConfig, Sampling, evaluate
from turntree.agents.errors import needed_packages
from turntree.envs import Limits, make

with needed_packages("local"):
    from transformers import AutoTokenizer

    from turntree.agents.engines.local import LocalEngine, LocalEngineConfig, Speculation
    from turntree.agents.turn_drafts.config import ReuseMode

WAYS = {
    "none": (None, None, "A"),
    "tree": (Speculation(adaptive=False), None, "A"),  # drafts whatever the steps are measured to cost
    "same_seed": (None, ReuseConfig(mode=ReuseMode.SAME_SEED), "C"),
    "rejection_sampling": (None, ReuseConfig(mode=ReuseMode.REJECTION_SAMPLING), "C"),
    "spec_rl": (None, ReuseConfig(mode=ReuseMode.SPEC_RL, preset="grpo"), "D"),
}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="SPEC-RL against tree drafts.")
    parser.add_argument("model")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args(arguments)

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    renderer = Renderer(tokenizer)
    limits = Limits(max_turns=3, max_turn_tokens=args.max_tokens, max_context_tokens=512)
    tokens_per_forward_pass = {}
    for name, (speculation, reuse, level) in WAYS.items():
        config = LocalEngineConfig(max_batch=16, max_context=512, speculation=speculation)
        with LocalEngine.from_pretrained(args.model, config=config) as engine:
            ways = engine
            if reuse is not None:
                ways = PrefixReuse(engine, reuse, vocabulary=engine.vocabulary, max_context=512)
            for _ in range(2):
                before = engine.stats()
                episodes = asyncio.run(
                    evaluate(
                        lambda: make("turntree/Arithmetic-v0"),
                        ways,
                        renderer,
                        range(args.tasks),
                        limits=limits,
                        sampling=Sampling(temperature=0.7),
                        samples=args.samples,
                    )
                )
                passes = (engine.stats() - before).forward_passes
                if isinstance(ways, PrefixReuse):
                    ways.close_step()  # the epoch is over: its turns may be used from now on
            tokens = sum(len(turn.completion.token_ids) for episode in episodes for turn in episode.turns)
            tokens_per_forward_pass[name] = tokens / passes
            print(f"{name:18} level {level}: {tokens / passes:.1f} tokens per forward pass in the second epoch")
    return tokens_per_forward_pass


if __name__ == "__main__":
    main()
