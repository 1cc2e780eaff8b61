"""Each use of earlier turns in a real training by verl: ``training.py`` with the ways and the size of that comparison.

The tasks come back in each epoch, which is one step, and the first update is as large as the others.

    python benchmarks/reuse.py --engine local|vllm|sglang [--epochs 2] [--json OUT]
"""

import sys

from training import main

SETTING = (
    *("--ways", "none", "tree", "tree+same_seed", "tree+rejection_sampling", "tree+spec_rl", "tree+run_ahead"),
    *("--epochs", "2", "--tasks", "16", "--batch", "16", "--samples", "4"),
    # Precomputed turns are requests, too.
    *("--set", "actor_rollout_ref.rollout.max_num_seqs=96", "actor_rollout_ref.actor.optim.lr_warmup_steps=0"),
)

if __name__ == "__main__":
    main([*SETTING, *sys.argv[1:]])
