"""Demonstrations to train on: an environment's solutions, recorded episodes, or dialogues in a JSONL file.

``rollout()`` plays solutions like the policy's turns, so the prompts equal the prompts of rollouts token for token.
Recorded episodes keep their sampled tokens. Only demonstrations with a reward above a threshold are used;
``Demonstrations.dropped`` counts the demonstrations that were left out, by reason.
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
from turntree.envs.checking.attempts import Form, paid_forms

TASKS = 100  #: default number of tasks whose solutions are played
_PROBED_TASKS = 8  #: tasks used to find the form of a right answer


class NoDemonstration(AgentError):
    """There is nothing to train on."""


@dataclass(slots=True, kw_only=True)
class Demonstrations:
    """Dialogues to train on, and counts of dialogues that were dropped."""

    views: list[TokenView] = field(default_factory=list)  #: tokens; a shortened dialogue has several views
    used: int = 0  #: dialogues in ``views``
    dropped: dict[str, int] = field(default_factory=dict)  #: by reason
    example: str = ""  #: the first dropped dialogue with its outcome; empty if none was dropped

    @property
    def seen(self) -> int:
        return self.used + sum(self.dropped.values())

    @property
    def tokens(self) -> int:
        """Number of the policy's tokens, on which the loss is computed."""
        return sum(sum(view.mask) for view in self.views)

    def drop(self, reason: str, example: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.example = self.example or example

    def add(self, views: Sequence[TokenView], positions: int | None, name: str) -> None:
        """Add a dialogue, unless it is longer than ``positions`` (context length) or has no token of the policy."""
        longest = max((len(view.prompt_ids) + len(view.response_ids) for view in views), default=0)
        if positions is not None and longest > positions:
            self.drop(f"longer than the model's {positions} positions", f"{name}: {longest} tokens")
        elif not any(any(view.mask) for view in views):
            self.drop("without a token of the policy", name)
        else:
            self.used += 1
            self.views += views

    def summary(self) -> str:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
        dropped = f", {sum(self.dropped.values())} dropped: {reasons} (first: {self.example})" if reasons else ""
        return f"{self.used} of {self.seen} demonstrations used{dropped}"

    def needed(self, advice: str) -> Demonstrations:
        """Return ``self``, or raise ``NoDemonstration`` with ``advice`` if all demonstrations were dropped."""
        if self.used:
            return self
        raise NoDemonstration(f"nothing to train on: {self.summary()}; {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Reads or plays demonstrations."""

    make_env: Callable[[], Any]
    renderer: Renderer  #: built on the trained model's tokenizer
    positions: int | None  #: the model's context length in tokens; ``None`` if unknown
    above: float = 0.0  #: episodes need a reward above this threshold

    def solutions(self, count: int | None = None, *, on_episode: Callable[[int], None] | None = None) -> Demonstrations:
        """Play the environment's solutions of its first ``count`` tasks; ``None`` plays up to ``TASKS`` tasks.

        Raises:
            NoDemonstration: If the environment has no solution, or no solution earns a reward above the threshold.
        """
        env = self.make_env()
        try:
            return asyncio.run(self._play_solutions(env, _task_count(env, count), on_episode))
        finally:
            env.close()

    async def _play_solutions(self, env: Any, count: int, on_episode: Callable[[int], None] | None) -> Demonstrations:
        base, name = env.unwrapped, env_id_of(env)
        if isinstance(base, PlaysItself) or not isinstance(base, Env):
            raise NoDemonstration(f"{name} has no solution() to play; record episodes and pass them with --from RUN")
        follow_template(base, self.renderer)
        form, demonstrations = self._form(base), Demonstrations()
        base.reset(seed=0, options={"index": 0})
        if not self._turns(base, form):
            raise NoDemonstration(
                f"{name} has no solution() for task {base.current_task.id!r}: return the turns that earn the full "
                "reward of self.current_task (docs/howto/sft.md), or pass demonstrations with --from RUN or --data FILE"
            )

        def turns() -> Iterator[str]:  # lazy, because the solution depends on the task that ``reset`` sets
            yield from self._turns(base, form)

        for index in range(count):
            engine = ScriptedEngine(turns(), self.renderer.tokenizer)
            sampling = Sampling(max_tokens=self.positions or 1 << 20)
            episode = await rollout(env, engine, self.renderer, index=index, seed=0, sampling=sampling)
            self._add_episode(episode, demonstrations, [episode])
            if on_episode is not None:
                on_episode(index + 1)
        return demonstrations.needed(
            "`turntree attack` shows which solutions earn no reward; --above lowers the threshold"
        )

    def _form(self, env: Env) -> Form | None:
        # If the environment has tools, an answer alone is no demonstration, because it lacks the tool calls.
        if env.offered_tools:
            return None
        count = _PROBED_TASKS if env.num_tasks is None else min(_PROBED_TASKS, env.num_tasks)
        return next(iter(paid_forms(env, [env.task(index) for index in range(count)], self.above)), None)

    def _turns(self, env: Env, form: Form | None) -> list[str]:
        answer = env.current_task.answer
        turns = list(env.solution()) or ([form(answer)] if form is not None and answer else [])
        closing = closing_of(self.renderer.template)
        return [closing + turn for turn in turns]

    def recorded(self, run: Path) -> Demonstrations:
        """Read the episodes of a training, an evaluation or a served run, for rejection sampling.

        Episodes of another tokenizer, or of a chat server without tokens, are rendered from their messages.
        """
        env, demonstrations = self.make_env(), Demonstrations()
        follow_template(env, self.renderer)
        try:
            name, (_, info) = env_id_of(env), env.reset(seed=0)
            for episode in (record.episode for file in episode_files(run) for record in read_records(file)):
                if episode.env_id != name:
                    demonstrations.drop(f"not of {name}", f"of {episode.env_id}")
                    continue
                dialogues = [episode, *episode.extra_dialogues]
                self._add_episode(episode, demonstrations, dialogues, info["tools"], env)
        finally:
            env.close()
        return demonstrations.needed(f"lower the reward's threshold (--above {self.above:g}), or pass another run")

    def messages(self, file: Path) -> Demonstrations:
        """Read a JSONL file of ``{"messages": [...], "tools": [...]}``; the default is the environment's tools."""
        env, demonstrations = self.make_env(), Demonstrations()
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
                demonstrations.add(views, self.positions, name)
        finally:
            env.close()
        too_long = "use a model with more positions, or shorter dialogues"
        return demonstrations.needed(too_long if demonstrations.seen else f"{file} has no row")

    def _add_episode(
        self,
        episode: Episode,
        demonstrations: Demonstrations,
        dialogues: Sequence[Episode],
        tools: Sequence[Mapping[str, Any]] = (),
        env: Any = None,
    ) -> None:
        task = episode.task.id if episode.task is not None else "?"
        if episode.masked:
            demonstrations.drop("failed", f"task {task}: {episode.failure or 'not graded'}")
        elif not episode.reward > self.above:
            outcome = f"task {task}: reward {episode.reward:g}, ended by {episode.stop_reason}"
            demonstrations.drop(f"with a reward of {self.above:g} or less", outcome)
        else:
            for dialogue in dialogues:
                usable = self._has_usable_tokens(dialogue)
                views = TokenView.of_each(dialogue) if usable else self._rendered(dialogue, tools, env)
                demonstrations.add(views, self.positions, f"task {task}")

    def _has_usable_tokens(self, episode: Episode) -> bool:
        # Use the recorded tokens only if this tokenizer decodes them to the recorded text.
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
            return ()  # the record has no messages of the prompts after the dialogue was shortened
        # The recorded text still contains the calls as the policy wrote them, so leave out the parsed calls.
        messages = [replace(message, tool_calls=()).to_openai() for message in episode.messages]
        return dialogue_views(messages, self.renderer, env, tools)


def _task_count(env: Any, count: int | None) -> int:
    available: int | None = env.unwrapped.num_tasks
    if count is not None and available is not None and count > available:
        raise UsageError(f"--tasks {count}: {env_id_of(env)} has only {available} tasks")
    return count or (TASKS if available is None else min(TASKS, available))
