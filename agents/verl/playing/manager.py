"""verl's agent-loop manager with another transport: the same episodes, with far fewer calls between processes.

verl's own worker makes three Ray calls per turn and three TransferQueue calls per
episode, negligible beside a large model and most of the time beside a small one.
This one sends turns in bulk (``TurnPipe``) and hands finished episodes over in
bulk. Tasks are spread over the replicas so that all rollouts of a task share one
store (``ReplicaTurns``). What verl's manager and worker do else is theirs: other
agent loops, its reward loop, distillation.

The engine is turntree's own, vLLM or SGLang. In asynchronous training, as
``config.asynchronous`` says, each step also judges groups again that have ended under
earlier weights and wait in verl's buffer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any
from uuid import uuid4

import ray
import torch
import transfer_queue
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ, apply_greedy_sampling_params
from verl.utils.tensordict_utils import assign_non_tensor_data, list_of_dict_to_tensordict

from turntree.agents.resuming.resume_config import OnResume
from turntree.agents.verl.config.asynchronous import on_resume
from turntree.agents.verl.config.sections import ConfigError, plain
from turntree.agents.verl.config.settings import RunSettings
from turntree.agents.verl.episodes.async_sampler import REVERIFIED, submitted_first
from turntree.agents.verl.episodes.dataset import AGENT_NAME
from turntree.agents.verl.episodes.output import EpisodeOutput
from turntree.agents.verl.names import ENGINES, replica_count, server_name
from turntree.agents.verl.playing.interrupted_groups import EndedGroup, InterruptedGroups
from turntree.agents.verl.playing.player import EpisodePlayer
from turntree.agents.verl.playing.replica_turns import ReplicaTurns
from turntree.agents.verl.playing.run_ahead_plays import AheadPlays
from turntree.agents.verl.playing.run_ahead_rows import RowForecast
from turntree.agents.verl.serving.restarts import is_restarted, retry_after_restart
from turntree.agents.verl.serving.turn_pipe import TurnPipe
from turntree.envs.failure import describe

logger = logging.getLogger(__name__)

_RESTARTS = 4
"""Times that Ray restarts a worker; it is then called again for the episodes of the batch."""
_HAND_OVER_SECONDS = 0.5
"""Longest time that finished groups wait for others before they are handed over, seconds."""


class EpisodeManager(AgentLoopManagerTQ):
    """Selected by ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        name = config.actor_rollout_ref.rollout.name
        if name not in ENGINES:
            raise ConfigError(f"turntree's episodes are played with rollout.name={' or '.join(ENGINES)}, got {name}")
        run = RunSettings.parse(plain(config.actor_rollout_ref.rollout.get("custom")))
        self._on_resume = on_resume(config, run)
        super().__init__(config, *args, **kwargs)
        self.agent_loop_workers_class: Any = ray.remote(max_restarts=_RESTARTS)(EpisodeWorker)
        self._forecast = RowForecast.of(config) if run.run_ahead.enabled else None
        self._begun: tuple[int, Counter[int]] = (0, Counter())
        """The step, and how often each task was begun in it."""
        self._turn = 0
        self._restored = False

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the episodes of a batch and return; they are handed over as they finish.

        The workers also get the rows that the next step is expected to play. A worker whose process dies is
        started again and plays the episodes that it had not handed over.
        """
        ahead: list[dict[str, Any]] = []
        if self._forecast is not None and not _validates(prompts):
            ahead = self._forecast.after(_rows(prompts))
        workers: list[Any] = self.agent_loop_workers
        if self._on_resume is not None and not _validates(prompts):
            self._generate_interrupted(workers, prompts)
            return
        chunks = prompts.chunk(len(workers))
        for place, (worker, chunk) in enumerate(zip(workers, chunks, strict=False)):
            playing = worker.generate_sequences.remote(chunk, ahead[place :: len(chunks)])
            playing.future().add_done_callback(_end_run_on_error)

    def _generate_interrupted(self, workers: Sequence[Any], prompts: TensorDict) -> None:
        """As ``generate_sequences`` where the weights change while episodes are played.

        A task that is begun again in the same step gets other noise. Every worker judges its groups again that have
        ended, if the run has it so. Those that a resumed run finds in verl's buffer are played anew.
        """
        if self._on_resume is OnResume.EPISODE:
            self._replay_restored(prompts)
        rows = _rows(prompts)
        step = int(rows[0]["global_steps"])
        if self._begun[0] != step:
            self._begun = step, Counter()
        repeats = []
        for row in rows:
            repeats.append(self._begun[1][int(row["index"])])
            self._begun[1][int(row["index"])] += 1
        prompts["repeat"] = torch.tensor(repeats)
        chunks = prompts.chunk(len(workers))
        # A batch may be smaller than the workers are many: they take turns.
        turned = [*workers[self._turn :], *workers[: self._turn]]
        self._turn = (self._turn + len(chunks)) % len(workers)
        for worker, chunk in zip(turned, chunks, strict=False):
            worker.generate_sequences.remote(chunk).future().add_done_callback(_end_run_on_error)
        for worker in turned[len(chunks) :]:
            worker.judge_again.remote(step).future().add_done_callback(_end_run_on_error)

    def _replay_restored(self, prompts: TensorDict) -> None:
        """Play groups of a checkpoint that have ended: how they went is not in it, so nobody can judge them."""
        if self._restored:
            return
        self._restored = True
        held = (transfer_queue.kv_list("train") or {}).get("train", {})
        if rows := [key for key, tag in held.items() if not tag.get("is_prompt")]:  # nothing was played yet
            transfer_queue.kv_clear(keys=rows, partition_id="train")
        if ended := sorted(key for key, tag in held.items() if tag.get("status") == "finished"):
            step = int(_rows(prompts)[0]["global_steps"])
            batch = transfer_queue.kv_batch_get(keys=ended, partition_id="train")
            assign_non_tensor_data(batch, "global_steps", step)
            # As verl has it of those that had not ended: what was quicker before the kill comes no earlier now.
            tags = [{"status": "pending", "global_steps": step} for _ in ended]
            transfer_queue.kv_batch_put(keys=ended, partition_id="train", tags=tags)
            self.generate_sequences(batch)


class EpisodeWorker(AgentLoopWorkerTQ.__ray_actor_class__):  # type: ignore[misc, name-defined]
    """verl's worker, a Ray actor that plays the episodes of its share of a batch."""

    def __init__(self, config: Any, *others: Any) -> None:
        super().__init__(config, *others)
        self._rollout = rollout = config.actor_rollout_ref.rollout
        run = RunSettings.parse(plain(rollout.get("custom")))
        self._on_resume = on_resume(config, run)
        self._player = EpisodePlayer(rollout, self.tokenizer, self._on_resume)
        client = uuid4().hex
        names = {rank: server_name(rank, backend=rollout.name) for rank in range(replica_count(config))}
        pipes = {rank: TurnPipe(ray.get_actor(name), client) for rank, name in names.items()}
        self._replicas = ReplicaTurns(pipes, lambda rank: _serving(names[rank]))
        self._restarted = is_restarted()
        if self._restarted:
            logger.warning("this agent-loop worker was restarted; episodes not handed over are played again")
        self._handed_over: set[str] = set()
        """Names of the groups that an earlier process has handed over."""
        self._outbox: list[_Group] = []
        self._interrupted_group = InterruptedGroups()
        self._batch = config.data.train_batch_size if run.asynchronous and run.asynchronous.in_order else 0
        """Groups of a step, if it is trained on what was submitted first."""
        self._carrier: asyncio.Task[None] | None = None
        """Hands over what the outbox holds; one that failed stays, for nothing may be lost without an error."""
        slots = run.run_ahead.slots(rollout.max_num_seqs)
        self._ahead = AheadPlays(self._player, pipes, self._replicas, slots=slots) if run.run_ahead.enabled else None

    @retry_after_restart
    async def generate_sequences(self, batch: TensorDict, ahead: Sequence[Mapping[str, Any]] = ()) -> None:
        """Play the episodes of a batch; returns when all are handed over.

        After a restart the groups that the earlier process has handed over are left out.

        Args:
            ahead: Rows of the next step, to be precomputed in idle slots.
        """
        validate, rows = _validates(batch), _rows(batch)
        if self._restarted:
            waiting = await _waited_for("val" if validate else "train")
            self._handed_over |= {row["uid"] for row in rows} - waiting
        if self._ahead is not None and not validate and any(row["uid"] not in self._handed_over for row in rows):
            await self._ahead.begin_step(int(rows[0]["global_steps"]))
        others = set(self.background_tasks)
        if not validate:
            await self._reverify_interrupted(int(rows[0]["global_steps"]))
        await super().generate_sequences(batch)
        groups = self.background_tasks - others
        if self._ahead is not None and ahead:
            sampling = {name: self._rollout[name] for name in ("temperature", "top_p", "top_k")}
            self._ahead.start(ahead, sampling, size=int(self._rollout.n))
        await self._handed_over_of(groups)

    async def judge_again(self, step: int) -> None:
        """Judge groups that have ended by the weights of a training step, and hand them over again."""
        others = set(self.background_tasks)
        await self._reverify_interrupted(step)
        await self._handed_over_of(self.background_tasks - others)

    async def _handed_over_of(self, groups: Iterable[asyncio.Task[Any]]) -> None:
        """Wait until groups are handed over; raises what keeps one from it, also one that the carrier had verified again."""
        await asyncio.gather(*groups)
        while self._carrier is not None and not self._carrier.done():
            await asyncio.shield(self._carrier)
        if self._carrier is not None:
            self._carrier.result()

    async def _reverify_interrupted(self, step: int) -> None:
        """Begin to judge the groups of this worker that are of earlier weights than a step's.

        Raises:
            RuntimeError: If this process was started again: nothing can judge the groups that the earlier one ended.
        """
        if self._on_resume is not OnResume.EPISODE:
            return
        if self._restarted:
            raise RuntimeError(
                "an agent-loop worker was restarted, and the episodes that it had ended cannot be verified again by newer "
                "weights; resume the run from its last checkpoint, or take turntree.asynchronous.on_resume=turn"
            )
        assert self._player.resuming is not None
        self._player.resuming.newest.see(step - 1)
        async with self._interrupted_group.listing:
            held = (await transfer_queue.async_kv_list("train")).get("train", {})
            due = None
            if self._batch:
                asked = {key: tag["global_steps"] for key, tag in held.items() if tag.get("is_prompt")}
                due = submitted_first(asked, self._batch)
            trained = self._interrupted_group.begin_step(step - 1, held, due)
        for uid in trained:
            self._player.trained_on(uid)
        self._reverify_stale()

    def _reverify_stale(self) -> list[asyncio.Task[None]]:
        """Begin to judge what was handed over under earlier weights than the step's."""
        tasks = [asyncio.create_task(self._reverify_group(uid)) for uid in self._interrupted_group.take_stale()]
        for task in tasks:
            self.background_tasks.add(task)
            task.add_done_callback(self.background_tasks.discard)
        return tasks

    async def _reverify_group(self, uid: str) -> None:
        row = self._interrupted_group.ended[uid].row
        await self._pass_on(row, await self._player.play_again(uid), validate=False)

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        """As verl's, with turns and episodes in bulk where the row is for turntree's agent loop."""
        if prompt["uid"] in self._handed_over:
            return
        if prompt["agent_name"] != AGENT_NAME:
            await super()._run_prompt(prompt, sampling_params, trajectory, trace)
            return
        validate = bool(trajectory["validate"])
        size = int(prompt.pop("__rollout_n__", (self._rollout.val_kwargs if validate else self._rollout).n))
        sampling = dict(sampling_params)
        if not prompt.pop("__do_sample__", True) and not validate:
            apply_greedy_sampling_params(sampling)
        row = {**prompt, "repeat": int(prompt.pop("repeat", 0))}
        outputs = await self._player.play_group(sampling, row, self._replicas.dialogue, size=size)
        await self._pass_on(prompt, outputs, validate)

    async def _pass_on(self, prompt: dict[str, Any], outputs: list[EpisodeOutput], validate: bool) -> None:
        """Have a group scored, and send it; one whose rewards cannot be computed is left out, as by verl's worker."""
        try:
            await asyncio.gather(
                *(self._judge(prompt, session, output, validate) for session, output in enumerate(outputs))
            )
        except Exception:
            logger.exception("a group is left out, as its rewards could not be computed")
            await transfer_queue.async_kv_put(
                key=prompt["uid"], partition_id="val" if validate else "train", tag={"status": "failure"}
            )
            # verl's buffer drops it, with the rows of an earlier judgement, and begins another in its place.
            self._interrupted_group.forget(prompt["uid"])
            self._player.forget(prompt["uid"])
            return
        group = _Group(prompt, outputs, validate)
        if self._on_resume is OnResume.EPISODE and not validate:
            version = self._player.version_of(group.uid)
            group.reverified(
                version, before=self._interrupted_group.end(group.uid, EndedGroup(prompt, group.keys, version))
            )
        self._outbox.append(group)
        if self._carrier is None or (self._carrier.done() and self._carrier.exception() is None):
            self._carrier = asyncio.create_task(self._hand_over())

    async def _judge(self, row: Mapping[str, Any], session: int, output: EpisodeOutput, validate: bool) -> None:
        """What verl's worker adds to an episode: the reward loop's score, where it scores, and the teacher's view."""
        row = {**row, "session_id": session}
        await self._compute_score([output], kwargs=row)
        await self._compute_teacher_logprobs(
            output, prompt_ids=output.prompt_ids, response_ids=output.response_ids, validate=validate, sample_kwargs=row
        )

    async def _hand_over(self) -> None:
        late: list[asyncio.Task[None]] = []
        """Groups that were on their way when the weights were updated, and are verified again now."""
        while self._outbox or late:
            if self.background_tasks:
                await asyncio.wait(set(self.background_tasks), timeout=_HAND_OVER_SECONDS)
            groups, self._outbox = self._outbox, []
            for partition in ("train", "val"):
                await _put([group for group in groups if group.partition == partition], partition)
            self._interrupted_group.handed_over(group.uid for group in groups)
            for task in late:
                if task.done():
                    task.result()
            late = [task for task in late if not task.done()] + self._reverify_stale()


def _end_run_on_error(playing: Future[None]) -> None:
    """End the trainer's process if no more episodes can come: verl would wait for them forever."""
    error = playing.exception()
    if error is None or not ray.is_initialized():
        return
    cause = describe(getattr(error, "cause", None) or error)  # Ray's own text is the worker's whole traceback
    logger.error("episodes are permanently lost, so the run ends here: %s", cause, exc_info=error)
    os.kill(os.getpid(), signal.SIGTERM)


async def _waited_for(partition: str) -> set[str]:
    """Names of the groups that the trainer still waits for."""
    held = await transfer_queue.async_kv_list(partition)
    return {key for key, tag in held.get(partition, {}).items() if tag.get("status") in ("pending", "running")}


async def _serving(name: str) -> None:
    await ray.get_actor(name).serving.remote()


class _Group:
    """The finished episodes of one task."""

    def __init__(self, row: dict[str, Any], outputs: list[EpisodeOutput], validate: bool) -> None:
        self.uid = row["uid"]
        self.partition = "val" if validate else "train"
        rows = [(session, *one) for session, output in enumerate(outputs) for one in enumerate(output.rows)]
        self.keys = [f"{self.uid}_{session}_{number}" for session, number, _ in rows]
        pairs = [_field(row, session, output) for session, _, output in rows]
        self.fields = [field for field, _ in pairs]
        self.tags = [tag for _, tag in pairs]
        self.before: Sequence[str] | None = None
        """Keys of its rows that were handed over before; ``None`` if none were."""

    def reverified(self, version: int, before: Sequence[str] | None) -> None:
        """Say by which weights it is verified again, and that its rows take the place of others."""
        self.tags = [{**tag, REVERIFIED: version} for tag in self.tags]
        self.before = before


def _field(row: dict[str, Any], session: int, output: EpisodeOutput) -> tuple[dict[str, Any], dict[str, Any]]:
    """An episode as verl's trainer reads it: its row, and the tag that the replay buffer checks."""
    field = {**output.as_dict(), **row, "session_id": session}
    tokens = torch.cat([field["prompts"], field["responses"]])
    field.update(
        loss_mask=field["response_mask"],
        input_ids=tokens,
        position_ids=torch.arange(len(tokens)),
        multi_modal_inputs={},
    )
    prompt, response = len(field["prompts"]), len(field["responses"])
    tag = {
        "status": "success",
        "prompt_len": prompt,
        "response_len": response,
        "seq_len": prompt + response,
        "global_steps": row["global_steps"],
        "min_global_steps": output.extra_fields["min_global_steps"],
        "max_global_steps": output.extra_fields["max_global_steps"],
    }
    return field, tag


async def _put(groups: list[_Group], partition: str) -> None:
    if not groups:
        return
    if before := [key for group in groups for key in group.before or ()]:
        await transfer_queue.async_kv_clear(keys=before, partition_id=partition)
    await transfer_queue.async_kv_batch_put(
        keys=[key for group in groups for key in group.keys],
        fields=list_of_dict_to_tensordict([field for group in groups for field in group.fields]),
        tags=[tag for group in groups for tag in group.tags],
        partition_id=partition,
    )
    # Only now may the replay buffer take the groups; of one that was verified again again the tags of its rows are enough.
    # It may have been taken by now, and a name that is written again would be that of a group that waits.
    if new := [group.uid for group in groups if group.before is None]:
        finished = [{"status": "finished"} for _ in new]
        await transfer_queue.async_kv_batch_put(keys=new, tags=finished, partition_id=partition)


def _validates(batch: TensorDict) -> bool:
    # Only item access unwraps a value that is not a tensor; pop() does not.
    return "validate" in batch and bool(batch["validate"])


def _rows(batch: TensorDict) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{} for _ in range(len(batch))]
    for name, column in batch.items():
        for index, row in enumerate(rows):
            if isinstance(column, NonTensorStack):
                row[name] = column[index].data
            elif isinstance(column, NonTensorData):
                row[name] = column.data
            else:
                row[name] = column[index]
    return rows
