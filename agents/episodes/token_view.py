"""An episode as one token sequence with a mask: what a trainer reads.

Invariant: every array but ``prompt_ids`` and ``turn_ends`` has the length of
``response_ids``; a position is the policy's exactly where ``mask`` is 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from turntree.agents.episodes.episode import Episode
from turntree.spec_tree.rules.level import level_codes


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """The tokens of an episode, concatenated. The observation after the last turn is left out."""

    prompt_ids: tuple[int, ...]
    """Tokens before the first turn, shape (prompt,)."""
    response_ids: tuple[int, ...]
    """Everything after: sampled and forced tokens, observations and template tokens, shape (response,)."""
    mask: tuple[int, ...]
    """1 where the policy sampled, 0 elsewhere, shape (response,)."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each sampled token, 0.0 elsewhere, shape (response,)."""
    accepted: tuple[bool, ...]
    """Where a draft was accepted; ``False`` where the engine does not report it, shape (response,)."""
    levels: tuple[int, ...]
    """Exactness of each sampled token as ``level.level_codes`` encodes it (1 for A to 4 for D), 0 elsewhere, shape
    (response,)."""
    behaviour_logprobs: tuple[float, ...]
    """Natural log-probability of each sampled token under the distribution that drew it, after all transforms;
    ``logprobs`` where the engine recorded none; 0.0 elsewhere, shape (response,)."""
    turn_ends: tuple[int, ...]
    """Index in ``response_ids`` of the last token of each turn, shape (turns,)."""

    @classmethod
    def of_each(cls, episode: Episode) -> tuple[TokenView, ...]:
        """The views of the episode's segments; of an episode whose dialogue was not shortened, the one of ``of``."""
        return tuple(cls.of(replace(episode, turns=turns)) for turns in episode.segments)

    @classmethod
    def of(cls, episode: Episode) -> TokenView:
        """Concatenate the turns of ``episode``; without turns everything is empty.

        Raises:
            ValueError: If the prompt of a turn does not begin with the prompt and response before it. Of an episode
                whose dialogue was shortened ``of_each`` gives the views.
        """
        if any(turn.text_only for turn in episode.turns):
            raise ValueError(f"task {episode.task and episode.task.id!r} was played by text alone: it has no tokens")
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
                    f"the prompt of turn {number} does not begin with the prompt and response of the turn "
                    f"before (task {episode.task and episode.task.id!r}): tokens were rendered again"
                )
            completion = turn.completion
            added = len(turn.prompt_ids) - len(context)
            sampled = len(completion.token_ids)
            forced = completion.forced or (False,) * sampled
            mask += [0] * added + [0 if one else 1 for one in forced]
            logprobs += [0.0] * added
            logprobs += completion.logprobs
            accepted += [False] * added
            accepted += completion.accepted or (False,) * sampled
            levels += [0] * added
            codes = level_codes(completion.levels or "A" * sampled).tolist()
            levels += [0 if one else code for one, code in zip(forced, codes, strict=True)]
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
