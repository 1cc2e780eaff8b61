"""Play one program as an episode.

Invariant: if the engine or the machine that runs the program fails, the episode fails and gets no reward, even if the
program continued after the failure. If the program itself raises, or reaches a limit of the task, the reward is 0.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace

from turntree.agents.engines.protocol import Engine, Sampling, derive_seed
from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.failures import PROGRAM_ERROR
from turntree.agents.gateway.app import Gateway
from turntree.agents.gateway.http.settings import WISHES, GatewaySettings
from turntree.agents.gateway.session_episodes import dialogues, episode_of
from turntree.agents.gateway.sessions import Session
from turntree.agents.harness.front import admitted
from turntree.agents.harness.program import Assignment, NoAnswer, Program, ProgramFailed
from turntree.agents.harness.turns import EpisodeTurns
from turntree.agents.loop.episode_driver import EpisodeDriver
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.thinking_budget import within_budget
from turntree.envs.failure import FailureKind
from turntree.envs.limits import Limits

PROGRAM_ANSWER = "program_answer"  #: metadata key of the program's final answer
_NO_LIMIT = 1 << 30  #: tokens


@dataclass(slots=True, kw_only=True)
class ProgramPlay(EpisodeDriver):
    engine: Engine
    renderer: Renderer
    limits: Limits
    sampling: Sampling
    program: Program
    seconds: float  #: time after which the program is stopped and the episode fails
    model: str  #: model name that the program uses for the policy
    tool_format: str | None
    side_episodes: tuple[Episode, ...] = ()  #: the program's other dialogues, such as those of its sub-agents

    async def episode(self, index: int | None) -> Episode:
        """Play task ``index``; with ``None``, play ``self.task``, or a task that the environment draws."""
        return replace(await self.to_end(self.run(index)), extra_dialogues=self.side_episodes)

    async def run(self, index: int | None) -> StopReason:
        info = await self.begin(index)
        limits = self.limits
        base = self.sampling.seed if self.sampling.seed is not None else self.seed
        turns = EpisodeTurns(
            within_budget(self.engine, self.renderer),
            replace(self.sampling, seed=base, max_tokens=limits.max_turn_tokens or _NO_LIMIT),
            most=limits.max_turns,
        )
        gateway = Gateway(turns, self.renderer, self._settings(key := secrets.token_hex(16)))
        prompt = "\n\n".join(message["content"] for message in info["messages"])
        answer: str | None = None
        failed: Exception | None = None
        try:
            async with admitted(gateway) as url:
                assignment = Assignment(
                    prompt=prompt,
                    task_id=self.task_id,
                    seed=derive_seed(base or 0),
                    base_url=url,
                    api_key=key,
                    model=self.model,
                )
                try:
                    async with asyncio.timeout(min(self.seconds, limits.max_seconds or self.seconds)):
                        answer = await self.program.run(assignment, self.off_loop)
                except (ProgramFailed, NoAnswer, TimeoutError) as error:
                    failed = error
                finally:
                    turns.close()
        finally:
            for session in gateway.sessions.take_all():
                self.split_dialogues(session)
        if turns.failure is not None:
            self.failure_kind = FailureKind.ENGINE
            raise turns.failure
        if answer is not None and self.turns:
            return await self.grade(answer)
        return self._without_answer(failed, turns.full, gateway.sessions.full)

    def _settings(self, key: str) -> GatewaySettings:
        limits = self.limits
        return GatewaySettings(
            model=self.model,
            max_context=limits.max_context_tokens or _NO_LIMIT,
            max_response=limits.max_episode_tokens,
            api_key=key,
            seconds=self.seconds,
            tool_format=self.tool_format,
            session="episode",
            session_seconds=float("inf"),
            task_id=self.task_id,
            env_id=self.env_id,
            # A program cannot choose the server's options, and would fail in every episode.
            wishes=WISHES,
        )

    def _without_answer(self, failed: Exception | None, turns_full: bool, tokens_full: bool) -> StopReason:
        limit = self.limits.max_seconds
        if isinstance(failed, TimeoutError):
            if limit is not None and limit <= self.seconds:
                return StopReason.MAX_SECONDS
            raise TimeoutError(f"the program did not answer within {self.seconds:g} s")
        if isinstance(failed, ProgramFailed):
            raise failed
        self.add_metadata(PROGRAM_ERROR, str(failed or "the program answered without asking the policy"))
        if turns_full:
            return StopReason.MAX_TURNS
        return StopReason.MAX_TOKENS if tokens_full else StopReason.DONE

    def add_metadata(self, key: str, text: str) -> None:
        assert self.task is not None
        self.task = replace(self.task, metadata={**self.task.metadata, key: text})

    def split_dialogues(self, session: Session) -> None:
        # The dialogue that ended last becomes the episode; all other dialogues become extra episodes.
        *rest, last = dialogues(session)
        seen: set[int] = set()
        episodes: list[Episode] = []
        for dialogue in (last, *reversed(rest)):
            shared = sum(id(node) in seen for node in dialogue.nodes)
            seen |= set(map(id, dialogue.nodes))
            episode = episode_of(dialogue, self.renderer.turn_text)
            episodes.append(
                replace(
                    episode,
                    env_id=self.env_id,
                    task=self.task,
                    seed=self.seed,
                    stop_reason=StopReason.DONE,
                    failure="",
                    failure_kind=None,
                    ungraded=(),
                    shared_turns=shared,
                )
            )
        main, *side = episodes
        self.turns, self.messages, self.side_episodes = [*main.turns], [*main.messages], tuple(reversed(side))

    async def grade(self, answer: str) -> StopReason:
        self.add_metadata(PROGRAM_ANSWER, answer)
        _, reward, _, _, info = await self.ask_env(self.env, answer)
        self.turns[-1] = replace(self.turns[-1], reward=float(reward))
        self.rewards = {name: float(value) for name, value in info["rewards"].items()}
        if info["failure"]:
            self.failure, self.failure_kind = info["failure"], FailureKind(info["failure_kind"])
        return StopReason(info["stop_reason"] or StopReason.DONE)
