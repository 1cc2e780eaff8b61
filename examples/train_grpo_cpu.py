"""GRPO with verl on the CPU, from Python: a small model learns arithmetic with a calculator.

    python examples/train_grpo_cpu.py MODEL [--steps 10] [key=value ...]

Any key of verl's configuration can be given; an unknown one is refused before anything starts.
"""

import argparse
import sys

from turntree.agents.errors import needed_packages
from turntree.agents.verl.launch import StepReport, train


def show(report: StepReport) -> None:
    speed = f"{report.tokens_per_forward_pass:.2f} tokens per forward pass"
    print(f"step {report.step}: reward {report.reward:.3f}, {speed}, {report.seconds:.1f} s", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="GRPO with verl on the CPU.")
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--config", default="grpo_arithmetic_cpu")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_intermixed_args(arguments)
    overrides = [
        f"actor_rollout_ref.model.path={args.model}",
        f"trainer.total_training_steps={args.steps}",
        *args.overrides,
    ]
    return train(args.config, overrides, on_step=show, on_phase=print)


if __name__ == "__main__":
    with needed_packages("train"):
        sys.exit(main())
