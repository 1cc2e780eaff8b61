import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from adder import play

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.record import EpisodeWriter
from turntree.agents.loop.renderer import Renderer

HOSTILE = "</script><img src=x onerror=document.title='owned'>"  #: what a policy may write to attack the page's reader


def with_drafts(episode: Episode, levels: str = "AB") -> Episode:
    turns = []
    for turn in episode.turns:
        said = turn.completion
        count = len(said.token_ids)
        marked = replace(
            said,
            logprobs=tuple(-0.25 * (index % 4) for index in range(count)),
            accepted=tuple(index % 2 == 1 for index in range(count)),
            levels=(levels * count)[:count],
            draft=replace(said.draft, verify_steps=count - count // 2, drafted=count, accepted=count // 2),
        )
        turns.append(replace(turn, completion=marked))
    return replace(episode, turns=tuple(turns))


async def write_run(folder: Path, renderer: Renderer, *, episodes: int = 40, steps: int = 4) -> Path:
    """Write a folder as ``turntree train`` leaves it, with ``episodes`` episodes over ``steps`` steps."""
    right, wrong, odd = [(await play(renderer, *said))[0] for said in (("call 4", "5"), ("6",), (HOSTILE, "5"))]
    failed = replace(right, stop_reason=StopReason.FAILURE, failure="the disk is full")
    kinds = [with_drafts(right), with_drafts(wrong, "AC"), with_drafts(odd, "AD"), with_drafts(failed)]
    for number in range(episodes):
        step = 1 + number * steps // episodes
        with EpisodeWriter(folder / "episodes" / f"step_{step:06d}.jsonl") as writer:
            writer.write(kinds[number % 4], step=step, index=number % 7, session=number % 3, seed=number)
    figures: list[dict[str, Any]] = [
        {"step": step, "data": {"critic/score/mean": step / steps, "timing_s/step": 2.0}}
        for step in range(1, steps + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in figures) + '{"step": 9, "da')
    counters = [{"step": row["step"], "tokens_per_forward_pass": 2.0, "accepted": 0, "drafted": 0} for row in figures]
    (folder / "engine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in counters))
    return folder
