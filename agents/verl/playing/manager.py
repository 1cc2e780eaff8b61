"""verl's agent-loop manager and worker with bulk transfers, and so far fewer calls between processes.

verl's worker makes three Ray calls per turn and three TransferQueue calls per episode. Their cost is negligible with a
large model, but dominates with a small model. This worker sends turns in bulk (``TurnPipe``) and also hands over ended
groups (all samples of a task) in bulk. ``ReplicaTurns`` routes all rollouts of a task to one replica, and so to one
draft store. verl's own manager and worker do the rest: other agent loops, the reward loop, distillation.

In asynchronous training (``config.asynchronous``), each step also re-verifies the groups in verl's buffer that ended
under earlier weights: the new weights draw their turns again with the same seeds, and the old turns are the drafts.
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
from turntree.agents.verl.playing.run_ahead import RowForecast, RunAheadEpisodes
from turntree.agents.verl.serving.restarts import is_restarted, retry_after_restart
from turntree.agents.verl.serving.turns import TurnPipe
from turntree.envs.failure import describe

logger = logging.getLogger(__name__)

_RESTARTS = 4  #: times that Ray restarts a worker and repeats the call with the worker's batch
_HAND_OVER_SECONDS = 0.5  #: longest time that an ended group waits for other groups to be handed over with


class EpisodeManager(AgentLoopManagerTQ):
    """The class for ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        name = config.actor_rollout_ref.rollout.name
        if name not in ENGINES:
            raise ConfigError(f"turntree's episodes need rollout.name={' or '.join(ENGINES)}, got {name}")
        run = RunSettings.parse(plain(config.actor_rollout_ref.rollout.get("custom")))
        self._on_resume = on_resume(config, run)
        super().__init__(config, *args, **kwargs)
        self.agent_loop_workers_class: Any = ray.remote(max_restarts=_RESTARTS)(EpisodeWorker)
        self._forecast = RowForecast.of(config) if run.run_ahead.enabled else None
        self._submitted: tuple[int, Counter[int]] = (0, Counter())  #: the step, and how often it submitted each task
        self._turn = 0  #: index of the worker that gets the next batch's first chunk
        self._restored = False  #: whether groups from a checkpoint were submitted again

    def generate_sequences(self, prompts: TensorDict) -> None:
        ahead: list[dict[str, Any]] = []
        if self._forecast is not None and not _validates(prompts):
            ahead = self._forecast.after(_rows(prompts))
        workers: list[Any] = self.agent_loop_workers
        if self._on_resume is not None and not _validates(prompts):
            self._generate_interrupted(workers, prompts)
            return
        chunks = prompts.chunk(len(workers))
        for rank, (worker, chunk) in enumerate(zip(workers, chunks, strict=False)):
            playing = worker.generate_sequences.remote(chunk, ahead[rank :: len(chunks)])
            playing.future().add_done_callback(_end_run_on_error)

    def _generate_interrupted(self, workers: Sequence[Any], prompts: TensorDict) -> None:
        # ``generate_sequences`` if the weights change during rollouts.
        if self._on_resume is OnResume.EPISODE:
            self._replay_restored(prompts)
        rows = _rows(prompts)
        step = int(rows[0]["global_steps"])
        if self._submitted[0] != step:
            self._submitted = step, Counter()
        repeats = []  # a task that is submitted again in the same step gets different noise
        for row in rows:
            repeats.append(self._submitted[1][int(row["index"])])
            self._submitted[1][int(row["index"])] += 1
        prompts["repeat"] = torch.tensor(repeats)
        chunks = prompts.chunk(len(workers))
        # A batch may have fewer rows than there are workers, so workers take turns. Idle workers only re-verify groups.
        rotated = [*workers[self._turn :], *workers[: self._turn]]
        self._turn = (self._turn + len(chunks)) % len(workers)
        for worker, chunk in zip(rotated, chunks, strict=False):
            worker.generate_sequences.remote(chunk).future().add_done_callback(_end_run_on_error)
        for worker in rotated[len(chunks) :]:
            worker.reverify.remote(step).future().add_done_callback(_end_run_on_error)

    def _replay_restored(self, prompts: TensorDict) -> None:
        # Play a checkpoint's ended groups again: the checkpoint does not have the turns to re-verify.
        if self._restored:
            return
        self._restored = True
        held = (transfer_queue.kv_list("train") or {}).get("train", {})
        # This process has not played anything yet, so all rows in the queue come from the checkpoint.
        if rows := [key for key, tag in held.items() if not tag.get("is_prompt")]:
            transfer_queue.kv_clear(keys=rows, partition_id="train")
        if ended := sorted(key for key, tag in held.items() if tag.get("status") == "finished"):
            step = int(_rows(prompts)[0]["global_steps"])
            batch = transfer_queue.kv_batch_get(keys=ended, partition_id="train")
            assign_non_tensor_data(batch, "global_steps", step)
            # Tag these groups as unfinished, so that groups that had ended before the run was killed get no priority.
            tags = [{"status": "pending", "global_steps": step} for _ in ended]
            transfer_queue.kv_batch_put(keys=ended, partition_id="train", tags=tags)
            self.generate_sequences(batch)


class EpisodeWorker(AgentLoopWorkerTQ.__ray_actor_class__):  # type: ignore[misc, name-defined]
    def __init__(self, config: Any, *args: Any) -> None:
        super().__init__(config, *args)
        self._rollout = rollout = config.actor_rollout_ref.rollout
        run = RunSettings.parse(plain(rollout.get("custom")))
        self._on_resume = on_resume(config, run)
        self._player = EpisodePlayer(rollout, self.tokenizer, self._on_resume)
        client = uuid4().hex
        names = {rank: server_name(rank, backend=rollout.name) for rank in range(replica_count(config))}
        pipes = {rank: TurnPipe(ray.get_actor(name), client) for rank, name in names.items()}
        self._replicas = ReplicaTurns(pipes, lambda rank: ray.get_actor(names[rank]).serving.remote())
        self._restarted = is_restarted()
        if self._restarted:
            logger.warning("this agent-loop worker was restarted; it replays the episodes that were not handed over")
        self._handed_over: set[str] = set()  #: groups that this worker handed over before it was restarted
        self._outbox: list[_Group] = []  #: ended groups that are not in verl's queue yet
        self._ended_groups = InterruptedGroups()
        # Groups per step, if a step is trained on the groups that were submitted first; otherwise 0.
        self._batch = config.data.train_batch_size if run.asynchronous and run.asynchronous.in_order else 0
        # The task that hands over the outbox. A failed task stays here, so that its error is raised later.
        self._carrier: asyncio.Task[None] | None = None
        slots = run.run_ahead.slots(rollout.max_num_seqs)
        self._ahead = (
            RunAheadEpisodes(self._player, pipes, self._replicas, slots=slots) if run.run_ahead.enabled else None
        )

    @retry_after_restart
    async def generate_sequences(self, batch: TensorDict, ahead: Sequence[Mapping[str, Any]] = ()) -> None:
        """Play the episodes of a batch; return after all episodes have been handed over."""
        validate, rows = _validates(batch), _rows(batch)
        if self._restarted:
            partition = "val" if validate else "train"
            held = (await transfer_queue.async_kv_list(partition)).get(partition, {})
            pending = {key for key, tag in held.items() if tag.get("status") in ("pending", "running")}
            self._handed_over |= {row["uid"] for row in rows} - pending
        if self._ahead is not None and not validate and any(row["uid"] not in self._handed_over for row in rows):
            await self._ahead.begin_step(int(rows[0]["global_steps"]))
        running = set(self.background_tasks)
        if not validate:
            await self._reverify_interrupted(int(rows[0]["global_steps"]))
        await super().generate_sequences(batch)
        groups = self.background_tasks - running
        if self._ahead is not None and ahead:
            sampling = {name: self._rollout[name] for name in ("temperature", "top_p", "top_k")}
            self._ahead.start(ahead, sampling, size=int(self._rollout.n))
        await self._wait_for_hand_over(groups)

    async def reverify(self, step: int) -> None:
        running = set(self.background_tasks)
        await self._reverify_interrupted(step)
        await self._wait_for_hand_over(self.background_tasks - running)

    async def _wait_for_hand_over(self, groups: Iterable[asyncio.Task[Any]]) -> None:
        await asyncio.gather(*groups)
        # The carrier may still be re-verifying groups. Errors of the carrier are raised here too.
        while self._carrier is not None and not self._carrier.done():
            await asyncio.shield(self._carrier)
        if self._carrier is not None:
            self._carrier.result()

    async def _reverify_interrupted(self, step: int) -> None:
        if self._on_resume is not OnResume.EPISODE:
            return
        if self._restarted:
            raise RuntimeError(
                "an agent-loop worker was restarted, so its ended episodes cannot be re-verified under newer weights; "
                "resume the run from its last checkpoint, or set turntree.asynchronous.on_resume=turn"
            )
        assert self._player.resuming is not None
        self._player.resuming.newest.see(step - 1)
        async with self._ended_groups.listing:
            held = (await transfer_queue.async_kv_list("train")).get("train", {})
            due = None
            if self._batch:
                submitted = {key: tag["global_steps"] for key, tag in held.items() if tag.get("is_prompt")}
                due = submitted_first(submitted, self._batch)
            trained = self._ended_groups.begin_step(step - 1, held, due)
        for uid in trained:
            self._player.trained_on(uid)
        self._reverify_stale()

    def _reverify_stale(self) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._reverify_group(uid)) for uid in self._ended_groups.take_stale()]
        for task in tasks:
            self.background_tasks.add(task)
            task.add_done_callback(self.background_tasks.discard)
        return tasks

    async def _reverify_group(self, uid: str) -> None:
        row = self._ended_groups.ended[uid].row
        await self._pass_on(row, await self._player.reverify_group(uid), validate=False)

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
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
        try:
            await asyncio.gather(
                *(self._score(prompt, session, output, validate) for session, output in enumerate(outputs))
            )
        except Exception:
            # As in verl's worker, a group whose rewards failed does not end the run.
            logger.exception("a group is left out because its rewards could not be computed")
            await transfer_queue.async_kv_put(
                key=prompt["uid"], partition_id="val" if validate else "train", tag={"status": "failure"}
            )
            # verl's buffer drops all rows of the group and requests a new group.
            self._ended_groups.forget(prompt["uid"])
            self._player.forget(prompt["uid"])
            return
        group = _Group(prompt, outputs, validate)
        if self._on_resume is OnResume.EPISODE and not validate:
            version = self._player.version_of(group.uid)
            ended = EndedGroup(prompt, group.keys, version)
            group.mark_reverified(version, replaced=self._ended_groups.end(group.uid, ended))
        self._outbox.append(group)
        if self._carrier is None or (self._carrier.done() and self._carrier.exception() is None):
            self._carrier = asyncio.create_task(self._hand_over())

    async def _score(self, row: Mapping[str, Any], session: int, output: EpisodeOutput, validate: bool) -> None:
        row = {**row, "session_id": session}
        await self._compute_score([output], kwargs=row)
        await self._compute_teacher_logprobs(
            output, prompt_ids=output.prompt_ids, response_ids=output.response_ids, validate=validate, sample_kwargs=row
        )

    async def _hand_over(self) -> None:
        late: list[asyncio.Task[None]] = []  # re-verifications of groups that were in transit during a weight update
        while self._outbox or late:
            if self.background_tasks:
                await asyncio.wait(set(self.background_tasks), timeout=_HAND_OVER_SECONDS)
            groups, self._outbox = self._outbox, []
            for partition in ("train", "val"):
                await _put([group for group in groups if group.partition == partition], partition)
            self._ended_groups.handed_over(group.uid for group in groups)
            for task in late:
                if task.done():
                    task.result()
            late = [task for task in late if not task.done()] + self._reverify_stale()


def _end_run_on_error(playing: Future[None]) -> None:
    # Otherwise verl would wait forever for episodes that will never arrive.
    error = playing.exception()
    if error is None or not ray.is_initialized():
        return
    cause = describe(getattr(error, "cause", None) or error)  # Ray's own text is the worker's whole traceback
    logger.error("the run ends because episodes are permanently lost: %s", cause, exc_info=error)
    os.kill(os.getpid(), signal.SIGTERM)


class _Group:  # an ended group, converted to rows and tags for verl's queue
    def __init__(self, row: dict[str, Any], outputs: list[EpisodeOutput], validate: bool) -> None:
        self.uid = row["uid"]
        self.partition = "val" if validate else "train"
        rows = [(session, *numbered) for session, output in enumerate(outputs) for numbered in enumerate(output.rows)]
        self.keys = [f"{self.uid}_{session}_{number}" for session, number, _ in rows]
        pairs = [_field(row, session, output) for session, _, output in rows]
        self.fields = [field for field, _ in pairs]
        self.tags = [tag for _, tag in pairs]
        self.replaced: Sequence[str] | None = None  # keys of the rows that this group replaces, if any

    def mark_reverified(self, version: int, replaced: Sequence[str] | None) -> None:
        self.tags = [{**tag, REVERIFIED: version} for tag in self.tags]
        self.replaced = replaced


# Returns the row that verl's trainer reads, and the tag that verl's replay buffer checks.
def _field(row: dict[str, Any], session: int, output: EpisodeOutput) -> tuple[dict[str, Any], dict[str, Any]]:
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
    if replaced := [key for group in groups for key in group.replaced or ()]:
        await transfer_queue.async_kv_clear(keys=replaced, partition_id=partition)
    await transfer_queue.async_kv_batch_put(
        keys=[key for group in groups for key in group.keys],
        fields=list_of_dict_to_tensordict([field for group in groups for field in group.fields]),
        tags=[tag for group in groups for tag in group.tags],
        partition_id=partition,
    )
    # Tag new groups last, because the replay buffer may take a group from then on. Re-verified groups already have the
    # tag. The buffer may have taken such a group meanwhile; a second tag would add a group that waits forever.
    if new := [group.uid for group in groups if group.replaced is None]:
        finished = [{"status": "finished"} for _ in new]
        await transfer_queue.async_kv_batch_put(keys=new, tags=finished, partition_id=partition)


def _validates(batch: TensorDict) -> bool:
    # Item access unwraps a value that is not a tensor; pop() does not.
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
