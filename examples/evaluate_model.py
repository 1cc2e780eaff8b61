"""Evaluate a model on an environment, with several samples per task.

python examples/evaluate_model.py MODEL [--env turntree/Arithmetic-v0] [--tasks 20] [--samples 4]
"""

import argparse
import asyncio

from turntree.agents import Evaluation, Renderer, Sampling, evaluate
from turntree.agents.errors import needed_packages
from turntree.agents.evaluation.metrics import repeated
from turntree.envs import Limits, make

with needed_packages("local"):
    from transformers import AutoTokenizer

    from turntree.agents.engines.local import LocalEngine, LocalEngineConfig


def main(arguments: list[str] | None = None) -> Evaluation:
    parser = argparse.ArgumentParser(description="Evaluate a model on an environment.")
    parser.add_argument("model")
    parser.add_argument("--env", default="turntree/Arithmetic-v0")
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=128)
    args = parser.parse_args(arguments)

    with LocalEngine.from_pretrained(args.model, config=LocalEngineConfig(max_batch=16, max_context=512)) as engine:
        episodes = asyncio.run(
            evaluate(
                lambda: make(args.env),
                engine,
                Renderer(AutoTokenizer.from_pretrained(args.model)),
                range(args.tasks),
                limits=Limits(max_turns=4, max_turn_tokens=args.max_tokens, max_context_tokens=512),
                sampling=Sampling(temperature=0.7),
                samples=args.samples,
            )
        )
    result = Evaluation.of(episodes)
    several = repeated([episodes[at : at + args.samples] for at in range(0, len(episodes), args.samples)])
    print(f"avg@{args.samples} {several.average.value:.3f} ({several.average.low:.3f} to {several.average.high:.3f})")
    for k, passing in several.passing.items():
        print(f"pass@{k} {passing.value:.3f}")
    print(f"{result.tokens_per_forward_pass:.2f} tokens per forward pass, {result.failures} failures left out")
    return result


if __name__ == "__main__":
    main()
