"""Demonstrations to train on: solutions of an environment, recorded episodes, or dialogues in a JSONL file.

Solutions are played through the same ``rollout()`` as the policy's own turns, so their prompts are token for token
those of rollouts. Recorded episodes keep the tokens that were sampled. Only demonstrations whose reward is above a
bound are used; ``Demonstrations.dropped`` counts the others by their reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from turntree.agents.engines.protocol import Sampling
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.record import episode_files, read_records
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.errors import AgentError, UsageError
from turntree.agents.loop.episode_driver import env_id_of
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import PlaysItself, rollout
from turntree.agents.loop.tool_format import follow_template
from turntree.agents.sft.dialogues import closing_of, dialogue_views, dialogues_in
from turntree.envs import Env
from turntree.envs.checking.answer_forms import paid_forms
from turntree.envs.checking.attempts import Form

TASKS = 100
"""Tasks whose solutions are played, unless a number is given."""
_PROBED = 8
"""Tasks in which the form of a right answer is looked for."""


class NoDemonstration(AgentError):
    """There is nothing to train on."""


@dataclass(slots=True, kw_only=True)
class Demonstrations:
    """Dialogues to train on, and what was left out."""

    views: list[TokenView] = field(default_factory=list)
    """Their tokens; an episode whose dialogue was shortened has several."""
    used: int = 0
    """Dialogues in ``views``."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Number of the dialogues left out, by reason."""
    example: str = ""
    """The first dialogue left out, with its outcome; empty if none was."""

    @property
    def seen(self) -> int:
        """All dialogues."""
        return self.used + sum(self.dropped.values())

    @property
    def tokens(self) -> int:
        """Tokens of the policy: what is learnt."""
        return sum(sum(view.mask) for view in self.views)

    def drop(self, reason: str, example: str) -> None:
        """Leave a dialogue out."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.example = self.example or example

    def add(self, views: Sequence[TokenView], positions: int | None, name: str) -> None:
        """Use a dialogue, unless it is too long for a model with ``positions`` positions."""
        longest = max((len(view.prompt_ids) + len(view.response_ids) for view in views), default=0)
        if positions is not None and longest > positions:
            self.drop(f"longer than the model's {positions} positions", f"{name}: {longest} tokens")
        elif not any(any(view.mask) for view in views):
            self.drop("without a token of the policy", name)
        else:
            self.used += 1
            self.views += views

    def summary(self) -> str:
        """Return the numbers in one line."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
        why = f", {sum(self.dropped.values())} dropped: {reasons} (first: {self.example})" if reasons else ""
        return f"{self.used} of {self.seen} demonstrations used{why}"

    def needed(self, advice: str) -> Demonstrations:
        """Return these demonstrations.

        Raises:
            NoDemonstration: If none is left.
        """
        if self.used:
            return self
        raise NoDemonstration(f"nothing to train on: {self.summary()}; {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What every kind of demonstration is read or played with."""

    make_env: Callable[[], Any]
    """Makes the environment."""
    renderer: Renderer
    """On the tokenizer of the model that is trained."""
    positions: int | None
    """Positions of the model; ``None`` if it does not state them."""
    above: float = 0.0
    """Only episodes with a reward above this bound are used."""

    def solutions(self, count: int | None = None, *, on_episode: Callable[[int], None] | None = None) -> Demonstrations:
        """Play the environment's own solutions of its first ``count`` tasks (``None``: ``TASKS``, or all if fewer).

        Args:
            on_episode: Called with the number of episodes played so far.

        Raises:
            NoDemonstration: If the environment has no solution, or none is paid above the bound.
            UsageError: If there are fewer tasks.
        """
        env = self.make_env()
        try:
            return asyncio.run(self._played(env, _tasks(env, count), on_episode))
        finally:
            env.close()

    async def _played(self, env: Any, count: int, on_episode: Callable[[int], None] | None) -> Demonstrations:
        own, name = env.unwrapped, env_id_of(env)
        if isinstance(own, PlaysItself) or not isinstance(own, Env):
            raise NoDemonstration(f"{name} has no solution() to play; record episodes, and name them with --from RUN")
        follow_template(own, self.renderer)
        form, found = self._form(own), Demonstrations()
        own.reset(seed=0, options={"index": 0})
        if not self._turns(own, form):
            raise NoDemonstration(
                f"{name} has no solution() for task {own.current_task.id!r}: let it return the turns that earn the "
                "full reward of self.current_task (docs/howto/sft.md), or give demonstrations with --from RUN or "
                "--data FILE"
            )

        def turns() -> Iterator[str]:  # asks for the solution once the episode has begun
            yield from self._turns(own, form)

        for index in range(count):
            engine = ScriptedEngine(turns(), self.renderer.tokenizer)
            sampling = Sampling(max_tokens=self.positions or 1 << 20)
            episode = await rollout(env, engine, self.renderer, index=index, seed=0, sampling=sampling)
            self._take(episode, found, [episode])
            if on_episode is not None:
                on_episode(index + 1)
        return found.needed("`turntree attack` shows which solutions are not paid; --above lowers the bound")

    def _form(self, env: Env) -> Form | None:
        """Return the form in which an environment without tools pays ``Task.answer``; with tools calls are missing."""
        if env.offered_tools:
            return None
        count = _PROBED if env.num_tasks is None else min(_PROBED, env.num_tasks)
        return next(iter(paid_forms(env, [env.task(index) for index in range(count)], self.above)), None)

    def _turns(self, env: Env, form: Form | None) -> list[str]:
        answer = env.current_task.answer
        turns = list(env.solution()) or ([form(answer)] if form is not None and answer else [])
        closing = closing_of(self.renderer.template)
        return [closing + turn for turn in turns]

    def recorded(self, run: Path) -> Demonstrations:
        """Read the episodes of a training, an evaluation or a served run: rejection sampling.

        Episodes of another tokenizer, or of a chat server, which have no tokens, are rendered from their messages.

        Raises:
            NoDemonstration: If no episode of this environment has a reward above the bound.
            RecordError: If an episode cannot be read.
            FileNotFoundError: If there is nothing at ``run``.
        """
        env, found = self.make_env(), Demonstrations()
        follow_template(env, self.renderer)
        try:
            name, (_, info) = env_id_of(env), env.reset(seed=0)
            for record in (one for file in episode_files(run) for one in read_records(file)):
                episode = record.episode
                if episode.env_id != name:
                    found.drop(f"not of {name}", f"of {episode.env_id}")
                    continue
                self._take(episode, found, [episode, *episode.extra_dialogues], info["tools"], env)
        finally:
            env.close()
        return found.needed(f"--above {self.above:g} is the bound of the reward; lower it, or name another run")

    def messages(self, file: Path) -> Demonstrations:
        """Read a JSONL file of dialogues, ``{"messages": [...], "tools": [...]}``; tools default to the environment's.

        Raises:
            UsageError: If a row is none.
            NoDemonstration: If there is none, or all are too long.
        """
        env, found = self.make_env(), Demonstrations()
        follow_template(env, self.renderer)
        try:
            _, info = env.reset(seed=0)
            for number, dialogue in dialogues_in(file):
                name = f"{file}, line {number}"
                try:
                    tools = dialogue.get("tools", info["tools"])
                    views = dialogue_views(dialogue["messages"], self.renderer, env, tools)
                except AgentError as error:
                    raise UsageError(f"{name}: {error}") from error
                found.add(views, self.positions, name)
        finally:
            env.close()
        return found.needed("give a longer model, or shorter dialogues" if found.seen else f"{file} has no row")

    def _take(
        self,
        episode: Episode,
        found: Demonstrations,
        dialogues: Sequence[Episode],
        tools: Sequence[Mapping[str, Any]] = (),
        env: Any = None,
    ) -> None:
        task = episode.task.id if episode.task is not None else "?"
        if episode.masked:
            found.drop("failed", f"task {task}: {episode.failure or 'not graded'}")
        elif not episode.reward > self.above:
            ended = f"task {task}: reward {episode.reward:g}, ended by {episode.stop_reason}"
            found.drop(f"with a reward of {self.above:g} or less", ended)
        else:
            for one in dialogues:
                views = TokenView.of_each(one) if self._is_ours(one) else self._rendered(one, tools, env)
                found.add(views, self.positions, f"task {task}")

    def _is_ours(self, episode: Episode) -> bool:
        """Whether an episode's tokens are of this tokenizer: they decode to the recorded text."""
        size = len(self.renderer.tokenizer)  # type: ignore[arg-type]
        for turn in episode.turns:
            ids = turn.completion.token_ids
            if turn.text_only or max(ids) >= size:
                return False
            if turn.text not in (self.renderer.turn_text(ids), self.renderer.turn_text(ids, special_tokens=True)):
                return False
        return True

    def _rendered(self, episode: Episode, tools: Sequence[Mapping[str, Any]], env: Any) -> tuple[TokenView, ...]:
        if any(turn.shortened for turn in episode.turns):
            return ()  # what the policy saw is not recorded as messages
        messages = [replace(message, tool_calls=()).to_openai() for message in episode.messages]  # calls are text there
        return dialogue_views(messages, self.renderer, env, tools)


def _tasks(env: Any, count: int | None) -> int:
    there: int | None = env.unwrapped.num_tasks
    if count is not None and there is not None and count > there:
        raise UsageError(f"--tasks {count}: {env_id_of(env)} has {there} tasks; ask for as many at most")
    return count or (TASKS if there is None else min(TASKS, there))
