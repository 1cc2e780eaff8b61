from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, ClassVar

from turntree.agents.engines.protocol import Engine, Sampling
from turntree.agents.episodes.episode import Episode
from turntree.agents.errors import UsageError
from turntree.agents.harness.program import CallableProgram, CommandProgram, Program
from turntree.agents.loop.renderer import Renderer
from turntree.agents.scoring.scorer import ANSWER, Scorer
from turntree.envs import Env, Limits, Message, Reply, Task, make
from turntree.envs.errors import UngradedAnswer
from turntree.envs.message import Role
from turntree.rewards import Sample


class HarnessEnv(Env):
    """Run an existing agent program as an episode; ``rollout`` plays it like any other environment.

    Another environment provides the tasks and grades the program's final answer. The program itself writes the
    dialogues with the policy. ``Limits.max_turns`` counts turns in all dialogues, token limits apply to each dialogue,
    and ``max_seconds`` ends the program with reward 0. ``tool_format`` is the policy's tool call format.
    """

    static_attributes: ClassVar[frozenset[str]] = Env.static_attributes | {
        *("num_tasks", "program", "seconds", "model", "_tasks", "_scorer")
    }

    def __init__(
        self,
        *,
        env: str,
        env_kwargs: Mapping[str, Any] | None = None,
        program: str | None = None,
        command: str | Sequence[str] | None = None,
        image: str | None = None,
        seconds: float = 600.0,
        model: str = "policy",
        rewards: Mapping[str, Any] | None = None,
        answer_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Choose the program and its tasks.

        Args:
            env: Id of the environment that provides the tasks and grades the final answer, see ``turntree.envs.make``.
                The program does not get the tools of ``env``.
            program: ``MODULE:NAME`` of a callable, see ``CallableProgram``.
            command: A command line, see ``CommandProgram``.
            image: Container image in which ``command`` runs.
            seconds: Time after which a program is stopped and the episode fails.
            model: Model name that the program uses for the policy.
            rewards: Rewards that grade the final answer, see ``Scorer``; with ``None``, ``env`` grades the answer.
            answer_format: For ``rewards``: the answer format of tasks whose data set does not define one.
            **kwargs: Arguments of ``Env``.

        Raises:
            UsageError: If the program is not found, or not exactly one of ``program`` and ``command`` is given.
            UnknownEnvironment: If no environment has the id ``env``.
        """
        super().__init__(**kwargs)
        if (program is None) == (command is None) or (image is not None and command is None):
            raise UsageError("expected either program=MODULE:NAME or command=...; image needs command")
        if not seconds > 0:
            raise UsageError(f"seconds must be positive, got {seconds}")
        self.program: Program = (
            CallableProgram(program) if program is not None else CommandProgram(command or "", image=image)
        )
        self.seconds = seconds
        self.model = model
        self._tasks = make(env, **dict(env_kwargs or {}))
        self._scorer = None if rewards is None else Scorer(rewards, answer_format=answer_format)
        self.num_tasks = self._tasks.num_tasks

    def task(self, index: int) -> Task:
        return self._tasks.task(index)

    def start(self, task: Task) -> Sequence[Message]:
        # The other environment's system prompt describes its own tools, which are not offered here.
        self._tasks.reset(seed=0, options={"task": task})
        return [message for message in self._tasks.messages if message.role is not Role.SYSTEM]

    def reply(self, message: Message) -> Reply:
        """Grade a final answer and end the episode.

        Raises:
            RuntimeError: If the environment that grades the answer failed.
            UngradedAnswer: If the rewards could not grade the answer.
        """
        if self._scorer is None:
            _, reward, _, _, info = self._tasks.step(message.content)
            if info["failure"]:
                raise RuntimeError(f"{type(self._tasks).__name__} could not grade the answer: {info['failure']}")
            return Reply(reward=reward, done=True, rewards=info["rewards"])
        task = self.current_task
        sample = Sample(
            turns=(message.content,),
            gold=task.answer,
            question=task.prompt,
            data_source=task.data_source,
            task_id=task.id,
            metadata=task.metadata,
        )
        (scored,) = self._scorer.score([sample])
        if scored.reward is None:
            raise UngradedAnswer(f"{', '.join(scored.ungraded)} could not grade the answer to {task.id}")
        correct = {"correct": scored.parts[ANSWER]} if ANSWER in scored.parts else {}
        return Reply(reward=scored.reward, done=True, rewards={**scored.parts, **correct})

    def close(self) -> None:
        super().close()
        self._tasks.close()

    async def play_episode(
        self,
        engine: Engine,
        renderer: Renderer,
        limits: Limits,
        *,
        task: Task | int | None,
        seed: int | None,
        sampling: Sampling,
        executor: Executor | None,
    ) -> Episode:
        from turntree.agents.errors import MissingExtra

        try:
            from turntree.agents.harness.play import ProgramPlay
        except ModuleNotFoundError as error:
            if error.name not in ("uvicorn", "h11", "starlette"):
                raise
            raise MissingExtra("HarnessEnv", "serve") from error
        play = ProgramPlay(
            env=self,
            engine=engine,
            renderer=renderer,
            limits=limits,
            task=None if isinstance(task, int) else task,
            seed=seed,
            sampling=sampling,
            executor=executor,
            program=self.program,
            seconds=self.seconds,
            model=self.model,
            tool_format=self.tool_format,
        )
        return await play.episode(task if isinstance(task, int) else None)
