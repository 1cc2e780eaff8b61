"""Replay a recorded run with and without speculation to measure the savings.

The weights of each chosen step play the recorded tasks twice in one process: with a drafting engine and with a plain
engine. Both engines must sample the same tokens, because noise depends only on seeds. The draft store holds the turns
of all earlier steps. Not covered: verl's part of a step (see ``metrics.jsonl``).
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turntree.agents.demo.compared import Comparison, Cost, StepComparison
from turntree.agents.engines.protocol import Sampling
from turntree.agents.episodes.dialogue import dialogue_states
from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.record import Record, read_records
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.verl.config.compose import Composition
from turntree.agents.verl.config.settings import EngineSettings
from turntree.agents.verl.episodes.dataset import make_env, token_bounds
from turntree.agents.verl.records.recording import RunFolder

if TYPE_CHECKING:
    from turntree.agents.engines.local import LocalEngine

logger = logging.getLogger(__name__)


def compare(
    composition: Composition, *, every: int = 3, on_step: Callable[[StepComparison], None] | None = None
) -> Comparison:
    """Replay recorded steps with and without speculation.

    Args:
        composition: Configuration of the run, whose folder holds episodes and weights.
        every: Distance between replayed steps; the first and the last are always included.
    """
    folder = RunFolder(Path(composition.settings.run_dir))
    steps = sorted(int(path.stem.removeprefix("step_")) for path in folder.root.glob("episodes/step_*.jsonl"))
    recorded = [step for step in steps if folder.weights(step).is_file()]
    if not recorded:
        raise FileNotFoundError(
            f"{folder.root} has no recorded steps with weights; train with turntree.record_episodes=true and "
            "turntree.save_policy_every=1"
        )
    chosen = {*recorded[::every], recorded[-1]}
    with _Replay(composition) as replay:
        done: list[StepComparison] = []
        for step in range(1, recorded[-1] + 1):
            records = list(read_records(folder.episodes(step)))
            if step not in chosen:
                replay.remember(record.episode for record in records)
                continue
            replay.load(folder.weights(step), step)
            if not done:
                replay.warm_up(records)
            done.append(replay.play(step, records, speculative_first=len(done) % 2 == 0))
            if on_step is not None:
                on_step(done[-1])
    return Comparison(steps=tuple(done))


class _Replay:
    def __init__(self, composition: Composition) -> None:
        from transformers import AutoTokenizer

        from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
        from turntree.agents.engines.local.forward.model import Policy

        settings, config = composition.settings, composition.verl
        model = config.actor_rollout_ref.model.path
        self._settings = settings
        self._rollout: Any = config.actor_rollout_ref.rollout
        self._lengths = int(config.data.max_prompt_length), int(config.data.max_response_length)
        engine_settings = EngineSettings.parse(_to_container(self._rollout.engine_kwargs.get("turntree")))
        engine = engine_settings.engine_config(
            max_batch=int(self._rollout.max_num_seqs),
            max_context=sum(self._lengths),
            dtype="float32",
            seed=0,
            device="cpu",
        )
        if engine.speculation is None:
            raise ValueError("the run was recorded without speculation, so there is nothing to compare")
        policy = Policy.load(model, dtype=engine.dtype, device=engine.device)
        plain_fields = {name: getattr(engine, name) for name in LocalEngineConfig.__dataclass_fields__}
        plain_fields["speculation"] = None
        self._speculative = LocalEngine(policy, config=engine, forest=engine_settings.forest)
        self._plain = LocalEngine(policy, config=LocalEngineConfig(**plain_fields))
        tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self._renderer = Renderer(tokenizer)
        self._envs: list[Any] = []

    def __enter__(self) -> _Replay:
        return self

    def __exit__(self, *exc: object) -> None:
        gc.unfreeze()
        self._speculative.close()
        self._plain.close()

    def load(self, weights: Path, version: int) -> None:
        from safetensors.torch import load_file

        named = load_file(weights)
        for engine in (self._speculative, self._plain):
            engine.update_weights(named.items(), version=version)

    def remember(self, episodes: Any) -> None:
        forest = self._speculative.forest  # the draft store
        assert forest is not None
        for episode in episodes:
            for state, turn in zip(dialogue_states(episode), episode.turns, strict=True):
                forest.insert(state, turn.completion.token_ids)

    def warm_up(self, records: Sequence[Record]) -> None:
        self._run(self._plain, records[: len(records) // 4])
        # The warm-up must not fill a cache that the measured run uses.
        self._plain.reset_prefix_cache()
        gc.collect()
        # Exclude existing objects from garbage collection; otherwise collections take a third of a step's time.
        gc.freeze()

    def play(self, step: int, records: Sequence[Record], *, speculative_first: bool) -> StepComparison:
        order = [self._speculative, self._plain][:: 1 if speculative_first else -1]
        results = {engine: self._run(engine, records) for engine in order}
        (drafted, cost), (plain, plain_cost) = results[self._speculative], results[self._plain]
        equal = sum(_tokens(a) == _tokens(b) for a, b in zip(drafted, plain, strict=True))
        if equal < len(records):
            logger.warning("step %d: %d of %d episodes differ", step, len(records) - equal, len(records))
        return StepComparison(step=step, episodes=len(records), equal=equal, speculative=cost, plain=plain_cost)

    def _run(self, engine: LocalEngine, records: Sequence[Record]) -> tuple[list[Episode], Cost]:
        settings = self._settings
        while len(self._envs) < len(records):
            self._envs.append(make_env(settings.env, settings.env_kwargs))
        limits = self._envs[0].limits.within(token_bounds(*self._lengths))

        async def play() -> list[Episode]:
            return await asyncio.gather(
                *(
                    rollout(
                        env,
                        engine,
                        self._renderer,
                        limits,
                        index=record.labels["index"],
                        seed=record.labels["index"],
                        sampling=Sampling(
                            temperature=float(self._rollout.temperature),
                            top_p=float(self._rollout.top_p),
                            top_k=int(self._rollout.top_k),
                            seed=record.labels["seed"],
                        ),
                    )
                    for env, record in zip(self._envs, records, strict=False)
                )
            )

        before = engine.stats()
        episodes = asyncio.run(play())
        spent = engine.stats() - before
        return episodes, Cost(**{field.name: getattr(spent, field.name) for field in fields(Cost)})


def _tokens(episode: Episode) -> list[tuple[int, ...]]:
    return [turn.completion.token_ids for turn in episode.turns]


def _to_container(section: Any) -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(section, resolve=True) if OmegaConf.is_config(section) else section
