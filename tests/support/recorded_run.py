import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from turntree.agents.demo.compared import Comparison, Cost, StepComparison
from turntree.agents.demo.tokenizer import build_tokenizer
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.record import EpisodeWriter
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.verl.records.recording import RunFolder, append_line
from turntree.envs import Task, make

RIGHT = ("calculator(3*4)", "calculator(2+12)", "#### 14")
EARLY = ("calculator(3*4)", "#### 12")


def write_run(
    root: Path,
    *,
    steps: int = 3,
    scripts: Sequence[Sequence[str]] = (RIGHT, RIGHT, EARLY),
    prompt: str = "2+3*4",
    tokenizer: bool = True,
) -> Path:
    """Write metrics, counters, episodes and a configuration as a training run does, without training."""
    folder = RunFolder(root)
    root.mkdir(parents=True, exist_ok=True)
    model = root / "model"
    if tokenizer:
        build_tokenizer().save_pretrained(model)
    folder.config.write_text(json.dumps({"actor_rollout_ref": {"model": {"path": str(model)}}}))
    for step in range(1, steps + 1):
        success = step / (steps + 1)
        data = {"training/global_step": step, "critic/score/mean": success, "timing_s/step": 1.5}
        append_line(folder.metrics, {"step": step, "data": data})
        append_line(folder.engine, {"step": step, "tokens_per_forward_pass": 1.0 + step})
        asyncio.run(_play(folder.episodes(step), step, scripts, prompt))
    return root


async def _play(path: Path, step: int, scripts: Sequence[Sequence[str]], prompt: str) -> None:
    tokenizer = build_tokenizer()
    renderer = Renderer(tokenizer)
    env = make("turntree/Arithmetic-v0", tool_format="compact", system_prompt="", describes_tools=True)
    with EpisodeWriter(path) as writer:
        for session, script in enumerate(scripts):
            asked = Task(id="arithmetic/train/0", prompt=prompt, answer="14")
            episode = await rollout(env, ScriptedEngine(script, tokenizer), renderer, task=asked, seed=0)
            writer.write(episode, step=step, index=0, session=session, seed=session)


def a_comparison(*, equal: int = 4, seconds: float = 1.0) -> Comparison:
    def cost(passes: int, wall: float) -> Cost:
        counts = {"tokens": 100, "drafted": 10, "accepted": 5, "tokens_per_forward_pass": 2.0}
        return Cost(forward_passes=passes, seconds=wall, draft_seconds=0.1, **counts)

    both = {"speculative": cost(20, seconds), "plain": cost(40, 1.5)}
    return Comparison(steps=tuple(StepComparison(step=step, episodes=4, equal=equal, **both) for step in (1, 2, 3)))
