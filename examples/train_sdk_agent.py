"""GRPO with verl on the CPU: the policy of a third-party agent (sdk_agent.py) learns to use the agent's tools.

    python examples/train_sdk_agent.py [--steps 20] [--agent sdk_agent:solve] [key=value ...]

The policy is the demo's, which knows one tool. The agent's two tools look alike to it at first. Only the reward tells
it that one tool adds and the other multiplies, and that it should call a tool before it answers.
"""

import argparse
import json
import sys
from pathlib import Path

from turntree.agents.errors import needed_packages

with needed_packages("train"):
    from turntree.agents.demo.warm_start import warm_started_policy
    from turntree.agents.verl.launch import StepReport, train

KNOWN, NEW, SPARE = "calculator", "multiply", "="
TEMPLATE = "{%- if tools %}{{- '<|end|>' }}{%- endif %}"
"""That there are tools is one token: the policy has never seen a system message."""


def with_two_tools(source: Path, folder: Path) -> Path:
    """Copy the demo's policy, with a second tool name that equals the first, and a template with tools."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source)
    config = json.loads((source / "tokenizer.json").read_text())
    words = config["model"]["vocab"]
    words[NEW] = words.pop(SPARE)
    split = config["pre_tokenizer"]["pattern"]
    split["Regex"] = f"{NEW}|{split['Regex']}"
    with torch.no_grad():
        rows = model.get_input_embeddings().weight
        rows[words[NEW]] = rows[words[KNOWN]]
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(config))
    for path in source.glob("*token*.json*"):
        if path.name != "tokenizer.json":
            (folder / path.name).write_text(path.read_text())
    plain = (source / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(TEMPLATE + plain)
    return folder


def show(report: StepReport) -> None:
    speed = f"{report.tokens_per_forward_pass:.2f} tokens per forward pass"
    print(f"step {report.step}: reward {report.reward:.3f}, {speed}, {report.seconds:.1f} s", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="GRPO of an agent that is written with another library.")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--agent", default="sdk_agent:solve", help="MODULE:NAME of a callable")
    parser.add_argument("--policy", type=Path, default=Path("runs/two_tools"), help="folder of the policy")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_intermixed_args(arguments)
    policy = with_two_tools(warm_started_policy(), args.policy)
    overrides = [
        f"actor_rollout_ref.model.path={policy.absolute()}",
        f"trainer.total_training_steps={args.steps}",
        f"turntree.env_kwargs.program={args.agent}",
        *args.overrides,
    ]
    return train("grpo_sdk_agent_cpu", overrides, on_step=show, on_phase=print)


if __name__ == "__main__":
    with needed_packages("train"):
        sys.exit(main())
