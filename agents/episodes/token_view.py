"""An episode as one token sequence with a mask, as trainers read it.

Invariant: every field except ``prompt_ids`` and ``turn_ends`` has the length of ``response_ids``; ``mask`` is 1 exactly
for the tokens that the policy sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from turntree.agents.episodes.episode import Episode
from turntree.spec_tree.rules.level import level_codes


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """The concatenated tokens of an episode, without the observation after the last turn."""

    prompt_ids: tuple[int, ...]  #: before the first turn, shape (prompt,)
    response_ids: tuple[int, ...]  #: sampled, forced, observation and template tokens, shape (response,)
    mask: tuple[int, ...]  #: 1 if sampled, else 0, shape (response,)
    logprobs: tuple[float, ...]  #: natural logarithm; 0.0 if not sampled, shape (response,)
    accepted: tuple[bool, ...]  #: whether the token is an accepted draft token; ``False`` if unknown, shape (response,)
    #: level (how exactly the token follows the policy) from ``level.level_codes``, 1 for A to 4 for D; 0 if not sampled
    levels: tuple[int, ...]
    #: log-probability under the distribution that the token was drawn from, after all transforms, shape (response,);
    #: ``logprobs`` if the engine recorded none; 0.0 if not sampled
    behaviour_logprobs: tuple[float, ...]
    turn_ends: tuple[int, ...]  #: index in ``response_ids`` of each turn's last token, shape (turns,)

    @classmethod
    def of_each(cls, episode: Episode) -> tuple[TokenView, ...]:
        """Return one view per segment of the episode."""
        return tuple(cls.of(replace(episode, turns=turns)) for turns in episode.segments)

    @classmethod
    def of(cls, episode: Episode) -> TokenView:
        """Concatenate the turns of ``episode``; without turns, every field is empty.

        Raises:
            ValueError: If a turn's prompt does not begin with the prompt and response of the previous turn. Use
                ``of_each`` for an episode whose dialogue was shortened.
        """
        if any(turn.text_only for turn in episode.turns):
            raise ValueError(f"the episode of task {episode.task and episode.task.id!r} has only text, no tokens")
        prompt = episode.turns[0].prompt_ids if episode.turns else ()
        context: tuple[int, ...] = prompt
        mask: list[int] = []
        logprobs: list[float] = []
        accepted: list[bool] = []
        levels: list[int] = []
        behaviour: list[float] = []
        ends: list[int] = []
        for number, turn in enumerate(episode.turns):
            if turn.prompt_ids[: len(context)] != context:
                raise ValueError(
                    f"the prompt of turn {number} does not begin with the prompt and response of the previous "
                    f"turn (task {episode.task and episode.task.id!r}): tokens were rendered again"
                )
            completion = turn.completion
            added = len(turn.prompt_ids) - len(context)
            sampled = len(completion.token_ids)
            forced = completion.forced or (False,) * sampled
            # Forced tokens (inserted, not sampled) get mask 0, so a trainer does not learn them.
            mask += [0] * added + [0 if is_forced else 1 for is_forced in forced]
            logprobs += [0.0] * added
            logprobs += completion.logprobs
            accepted += [False] * added
            accepted += completion.accepted or (False,) * sampled
            levels += [0] * added
            codes = level_codes(completion.levels or "A" * sampled).tolist()
            levels += [0 if is_forced else code for is_forced, code in zip(forced, codes, strict=True)]
            behaviour += [0.0] * added
            behaviour += completion.behaviour_logprobs or completion.logprobs
            ends.append(len(mask) - 1)
            context = turn.prompt_ids + completion.token_ids
        return cls(
            prompt_ids=prompt,
            response_ids=context[len(prompt) :],
            mask=tuple(mask),
            logprobs=tuple(logprobs),
            accepted=tuple(accepted),
            levels=tuple(levels),
            behaviour_logprobs=tuple(behaviour),
            turn_ends=tuple(ends),
        )
