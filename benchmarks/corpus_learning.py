"""Train a tiny policy in ``turntree/Search-v0`` over a made-up corpus: does its reward rise with every seed?

The corpus has one text per building. A building's year comes after the part that a search shows, so an answer needs a
search with the right words and a reading of the right hit. The policy has some hundred thousand parameters and a
word-level vocabulary. It starts from demonstrations that are mostly wrong on purpose: they search for the town alone
and read the first hit, or answer at once. Every run is a real ``turntree train``; seeds differ in sampling noise. Runs
that the JSON file already has are kept.

    python benchmarks/corpus_learning.py [--steps 16] [--seeds 3] [--json benchmarks/results/corpus_learning.json]
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from algorithms import figures_of, first_and_last
from common.provenance import kept_from, provenance
from common.script import arguments, keep, show
from common.verl_training import trained

from turntree.agents.demo.policy import PolicyShape, build_policy, save_policy
from turntree.agents.demo.tokenizer import word_tokenizer
from turntree.agents.demo.warm_start import WarmStart, optimizers
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.sft.fit import fit
from turntree.envs import Env, Limits, Task, make

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ID = "turntree/Search-v0"
KINDS = ("bridge", "tower", "mill", "harbour")
TOWNS = 24
FILLER = "Administratively neighbourhood-owned, architecturally unremarkable, archaeologically investigated, "
FILLER += "photographically documented, conscientiously maintained, internationally unrecognised."
RIGHT, NARROW, AT_ONCE = 0.35, 0.40, 0.25
WORD = r" ?\w+|[^\w]"  #: a space belongs to the word after it, so that a copied word is the same token
ENV = {"tool_format": "compact", "system_prompt": "", "describes_tools": True, "hits": 2}
LIMITS = {"max_turns": 6, "max_turn_tokens": 16}
PACKAGES = ("turntree", "torch", "verl")


def archive(folder: Path) -> dict[str, str]:
    rng = random.Random(0)
    syllables = [first + second for first in "bdfgklmnrst" for second in ("a", "e", "i", "o", "u")]
    towns = [
        first + second for first, second in zip(rng.sample(syllables, TOWNS), rng.sample(syllables, TOWNS), strict=True)
    ]
    texts, questions = [], []
    for number, (town, kind) in enumerate((town, kind) for town in towns for kind in KINDS):
        year = str(1500 + rng.randrange(60))
        title = f"{kind} of {town}"
        texts.append({"id": str(number), "title": title, "text": f"{FILLER} The {title} was built in {year}."})
        questions.append({"id": str(number), "question": f"When was the {title} built?", "answer": year})
    for name, rows in (("corpus", texts), ("questions", questions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"corpus": str(folder / "corpus.jsonl"), "data": str(folder / "questions.jsonl")}


def tokenizer_of(files: dict[str, str]) -> PreTrainedTokenizerFast:
    seen = " ".join(Path(file).read_text() for file in files.values()) + "search read boxed\\{}()[]:.\n"
    words = {form for word in re.findall(WORD, seen) for form in (word, word.strip() or word)}
    return word_tokenizer(sorted(words), WORD)


def demonstrations(env: Env, tokenizer: Any, count: int) -> list[TokenView]:
    return asyncio.run(_played(env, tokenizer, count))


async def _played(env: Env, tokenizer: Any, count: int) -> list[TokenView]:
    rng, renderer, views = random.Random(1), Renderer(tokenizer), []
    ways = rng.choices(("right", "narrow", "at once"), (RIGHT, NARROW, AT_ONCE), k=count)
    for way in ways:
        task = env.task(rng.randrange(TOWNS * len(KINDS)))
        episode = await rollout(env, ScriptedEngine(said(env, task, way, rng), tokenizer), renderer, task=task)
        views.append(TokenView.of(episode))
    return views


def said(env: Any, task: Task, way: str, rng: random.Random) -> list[str]:
    building = task.prompt.removeprefix("When was the ").removesuffix(" built?")
    kind, town = building.split(" of ")
    if way == "at once":
        return [rf"\boxed{{ {1500 + rng.randrange(60)}}}"]
    query = f"{kind} {town}" if way == "right" else town
    hits = env.search(query)
    first = hits[1 : hits.index("]")]
    year = env.read(first).rsplit(" ", 1)[1].rstrip(".")
    return [f"search( {query})", f"read({first})", rf"\boxed{{ {year}}}"]


def steps_of(policy: Path, files: dict[str, str], *, seed: int, steps: int) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            "env": "search",
            "actor_rollout_ref.model.path": policy,
            "actor_rollout_ref.rollout.seed": seed,
            "actor_rollout_ref.actor.optim.lr": 8e-4,
            "actor_rollout_ref.actor.optim.lr_warmup_steps": 8,
            "data.train_batch_size": 16,
            "data.max_prompt_length": 32,
            "data.max_response_length": 320,
            "turntree.train_tasks": 48,
            "turntree.val_tasks": 8,
            "turntree.rewards": "{environment: 1}",
            **{f"+turntree.env_kwargs.{name}": value for name, value in {**ENV, **files}.items()},
            **{f"turntree.env_kwargs.limits.{name}": value for name, value in LIMITS.items()},
            "turntree.record_episodes": False,
        }
        reports = trained("turntree_trainer", Path(folder) / "run", steps, settings)
    names = [f"turntree/{name}" for name in ("tokens_per_forward_pass", "turns", "tool_calls")]
    return [figures_of(report, names) for report in reports]


def row(seed: str, run: dict[str, Any]) -> tuple[str, ...]:
    first, last = first_and_last(run)
    turns, tokens = (f"{run['steps'][-1][f'turntree/{name}']:.2f}" for name in ("turns", "tokens_per_forward_pass"))
    return seed, f"{first:.3f}", f"{last:.3f}", f"{last - first:+.3f}", turns, tokens


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(json=Path("benchmarks/results/corpus_learning.json"))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--warm-steps", type=int, default=150)
    args = parser.parse_args()
    settings = {"steps": args.steps, "warm_steps": args.warm_steps}
    record = provenance(PACKAGES) | {"settings": settings, "runs": {}}
    record["runs"] = kept_from(args.json, record).get("runs", {})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = archive(folder)
        tokenizer = tokenizer_of(files)
        env = make(ID, **files, **ENV, limits=Limits(**LIMITS))
        policy = build_policy(PolicyShape(context=512), tokenizer=tokenizer)
        settings = WarmStart(steps=args.warm_steps)
        fit(policy, demonstrations(env, tokenizer, 2400), settings, optimizers(policy, settings))
        save_policy(policy, folder / "policy", tokenizer)
        for seed in range(args.seeds):
            if str(seed) in record["runs"]:
                continue
            steps = steps_of(folder / "policy", files, seed=seed, steps=args.steps)
            record["runs"][str(seed)] = {"steps": steps}
            keep(args.json, record)
    columns = ("seed", "first quarter", "last quarter", "rose by", "turns", "tokens per forward pass")
    show("Reward", columns, (row(*one) for one in record["runs"].items()))


if __name__ == "__main__":
    main()
