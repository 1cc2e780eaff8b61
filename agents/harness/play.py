"""One program played as an episode: its task in, its dialogues and the verdict on its answer out.

Invariant: a failure of the machine, that is of the engine or of whatever runs the program, is a failure of the episode
and never a reward, also where the program went on in spite of it. What the program can cause by itself, and what a
limit of the task ended, the policy answers for: reward 0.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace

from turntree.agents.engines.protocol import Engine, Sampling, derive_seed
from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.episodes.failures import PROGRAM_ERROR
from turntree.agents.gateway.app import Gateway
from turntree.agents.gateway.http.settings import GatewaySettings
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

PROGRAM_ANSWER = "program_answer"
"""Key of the task's metadata in a played episode: the program's final answer."""
_ENDLESS = 1 << 30


@dataclass(slots=True, kw_only=True)
class ProgramPlay(EpisodeDriver):
    """An episode whose turns a program asks for."""

    engine: Engine
    renderer: Renderer
    limits: Limits
    sampling: Sampling
    program: Program
    seconds: float
    """Time after which the program counts as broken."""
    model: str
    """The name by which it asks for the policy."""
    tool_format: str | None
    others: tuple[Episode, ...] = ()

    async def episode(self, index: int | None) -> Episode:
        """Play task ``index``; ``None`` plays the given task, or one that the environment draws."""
        return replace(await self.to_end(self.run(index)), extra_dialogues=self.others)

    async def run(self, index: int | None) -> StopReason:
        """Play to the end."""
        info = await self.begin(index)
        limits = self.limits
        base = self.sampling.seed if self.sampling.seed is not None else self.seed
        turns = EpisodeTurns(
            within_budget(self.engine, self.renderer),
            replace(self.sampling, seed=base, max_tokens=limits.max_turn_tokens or _ENDLESS),
            most=limits.max_turns,
        )
        gateway = Gateway(turns, self.renderer, self._settings(key := secrets.token_hex(16)))
        prompt = "\n\n".join(message["content"] for message in info["messages"])
        answer: str | None = None
        failed: Exception | None = None
        try:
            async with admitted(gateway) as url:
                given = Assignment(
                    prompt=prompt,
                    task_id=self.task_id,
                    seed=derive_seed(base or 0),
                    base_url=url,
                    api_key=key,
                    model=self.model,
                )
                try:
                    async with asyncio.timeout(min(self.seconds, limits.max_seconds or self.seconds)):
                        answer = await self.program.run(given, self.off_loop)
                except (ProgramFailed, NoAnswer, TimeoutError) as error:
                    failed = error
                finally:
                    turns.close()
        finally:
            for session in gateway.sessions.take_all():
                self.take(session)
        if turns.lost is not None:
            self.failure_kind = FailureKind.ENGINE
            raise turns.lost
        if answer is not None and self.turns:
            return await self.judge(answer)
        return self._without_answer(failed, turns.full, gateway.sessions.full)

    def _settings(self, key: str) -> GatewaySettings:
        """Of a gateway with one session, which is this episode."""
        limits = self.limits
        return GatewaySettings(
            model=self.model,
            max_context=limits.max_context_tokens or _ENDLESS,
            max_response=limits.max_episode_tokens,
            api_key=key,
            seconds=self.seconds,
            tool_format=self.tool_format,
            session="episode",
            session_seconds=float("inf"),
            task_id=self.task_id,
            env_id=self.env_id,
        )

    def _without_answer(self, failed: Exception | None, turns_full: bool, tokens_full: bool) -> StopReason:
        """Why there is no answer to judge: a limit, or what the program did."""
        limit = self.limits.max_seconds
        if isinstance(failed, TimeoutError):
            if limit is not None and limit <= self.seconds:
                return StopReason.MAX_SECONDS
            raise TimeoutError(f"the program had no answer after {self.seconds:g} s")
        if isinstance(failed, ProgramFailed):
            raise failed
        self.note(PROGRAM_ERROR, str(failed or "the program answered without a turn of the policy"))
        if turns_full:
            return StopReason.MAX_TURNS
        return StopReason.MAX_TOKENS if tokens_full else StopReason.DONE

    def note(self, key: str, text: str) -> None:
        """Keep a text with the task."""
        assert self.task is not None
        self.task = replace(self.task, metadata={**self.task.metadata, key: text})

    def take(self, session: Session) -> None:
        """Take the turns of the dialogue that ended last as the episode's own, and the other dialogues beside it."""
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
        own, *others = episodes
        self.turns, self.messages, self.others = [*own.turns], [*own.messages], tuple(reversed(others))

    async def judge(self, answer: str) -> StopReason:
        """Give the final answer to the environment."""
        self.note(PROGRAM_ANSWER, answer)
        _, reward, _, _, info = await self.ask_env(self.env, answer)
        self.turns[-1] = replace(self.turns[-1], reward=float(reward))
        self.rewards = {name: float(value) for name, value in info["rewards"].items()}
        if info["failure"]:
            self.failure, self.failure_kind = info["failure"], FailureKind(info["failure_kind"])
        return StopReason(info["stop_reason"] or StopReason.DONE)
