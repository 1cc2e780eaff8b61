"""Train a chat model in a custom environment over several seeds: demonstrations, then GRPO.

The environment is ``examples/two_tools.py``, written after ``docs/howto/environment.md``. ``turntree sft`` trains the
model for a few steps on 100 demonstrations; ``turntree train`` continues from there for each seed. *Success* is the
share of a step's episodes with the right answer; *first* and *last* are means of five steps. *Parsed* is the share of
first turns with a valid call in the first training step. The training has 16 tasks, which repeat.

Existing fine-tuned models and trainings in the folder are kept. A training that was killed starts again.

    turntree model smollm2 models/smollm2
    python benchmarks/first_environment.py --model models/smollm2 [--seeds 0 1 2] [--steps 30] [--json FILE]
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common.provenance import provenance
from common.script import arguments, keep, show, titled

from turntree.agents.episodes.record import read_episodes
from turntree.agents.verl.launch import train

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ENV = "two_tools:Shop"
DEMONSTRATIONS = 100
WINDOW = 5
OVERRIDES = (
    "size=small",
    r"turntree.env=two_tools\:Shop",
    "turntree.train_tasks=16",
    "turntree.env_kwargs={limits: {max_turns: 3, max_turn_tokens: 32}}",
    "data.max_prompt_length=192",
    "data.max_response_length=88",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
)


def fine_tune(folder: Path, model: Path, steps: int) -> None:
    if not folder.exists():
        words = ["sft", ENV, "--model", model, "--out", folder, "--tasks", DEMONSTRATIONS, "--steps", steps]
        subprocess.run([sys.executable, "-m", "turntree.agents.cli", *map(str, words)], cwd=EXAMPLES, check=True)


def learn(folder: Path, model: Path, seed: int, *, steps: int, rate: float) -> None:
    if (folder / "seconds.json").exists():
        return
    shutil.rmtree(folder / "run", ignore_errors=True)
    own = [
        f"actor_rollout_ref.model.path={model}",
        f"actor_rollout_ref.rollout.seed={seed}",
        f"actor_rollout_ref.actor.optim.lr={rate}",
        f"trainer.total_training_steps={steps}",
        f"turntree.run_dir={folder / 'run'}",
    ]
    began = time.perf_counter()
    if status := train("turntree_trainer", [*OVERRIDES, *own]):
        raise RuntimeError(f"seed {seed}: the training ended with status {status}; see {folder / 'run' / 'train.log'}")
    (folder / "seconds.json").write_text(json.dumps(round(time.perf_counter() - began, 1)))


def row(folder: Path, seed: int) -> dict[str, Any]:
    steps = [list(read_episodes(file)) for file in sorted((folder / "run" / "episodes").glob("step_*.jsonl"))]
    success = [statistics.fmean(one.rewards.get("correct", 0.0) for one in step) for step in steps]
    turns = [next(message for message in one.messages if message.role == "assistant") for one in steps[0]]
    parsed = sum(bool(message.tool_calls) for message in turns) / len(steps[0])
    return {
        "seed": seed,
        "parsed": round(parsed, 3),
        "first": round(statistics.fmean(success[:WINDOW]), 3),
        "last": round(statistics.fmean(success[-WINDOW:]), 3),
        "steps": len(success),
        "seconds": json.loads((folder / "seconds.json").read_text()),
        "success": [round(one, 3) for one in success],
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sft-steps", type=int, default=6)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rate", type=float, default=1.5e-5, help="learning rate of GRPO")
    parser.add_argument("--runs", type=Path, default=Path("runs/first_environment"), help="folder of the runs")
    args = parser.parse_args()
    model, runs = args.model.resolve(), args.runs.resolve()
    about = provenance(("turntree", "verl", "torch", "transformers"))
    sys.path.insert(0, str(EXAMPLES))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(EXAMPLES), os.environ.get("PYTHONPATH")]))
    fine_tune(runs / "sft", model, args.sft_steps)
    fine_tuned = json.loads((runs / "sft" / "sft.json").read_text())
    kept = ("steps", "trained_tokens", "loss_first", "loss_last", "seconds")
    about["sft"] = {name: fine_tuned[name] for name in kept}
    rows = []
    for seed in args.seeds:
        folder = runs / str(seed)
        learn(folder, runs / "sft", seed, steps=args.steps, rate=args.rate)
        rows.append(row(folder, seed))
        keep(args.json, {**about, "seeds": rows})
    columns = ("seed", "parsed", "first", "last", "steps", "seconds")
    show(titled(about), columns, ([one[name] for name in columns] for one in rows))


if __name__ == "__main__":
    main()
