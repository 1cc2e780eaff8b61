"""Four signs that a policy cannot learn from its episodes, checked in training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from turntree.agents.engines.protocol import FinishReason
from turntree.agents.episodes.episode import Episode, Turn
from turntree.envs.parsers import likely_format

MANY = 0.5  #: share of unparsed tool calls, or of cut turns, above which a warning is due
_ROUNDING = 1e-9  #: largest difference of two rewards that count as equal
_QUOTED_LENGTH = 100  #: characters of a quoted turn


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningFigures:
    turns: float
    calls: float  #: parsed tool calls
    unparsed: float  #: number of turns with a tool call that could not be parsed
    cut: float  #: share of turns that ended at a token limit
    equal_groups: float | None  #: share of groups whose rewards are all equal; ``None``: see ``equal_groups()``


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    tool_format: str
    token_limit: str
    many_cut: float = MANY  #: share of cut turns above which a warning is due


def figures_of(groups: Sequence[Sequence[Episode]]) -> LearningFigures:
    """Compute the figures of all groups; ``groups`` are the episodes of each task. Masked episodes are left out."""
    scored = [[episode for episode in group if not episode.masked] for group in groups]
    episodes = list(chain.from_iterable(scored))
    turns = [turn for episode in episodes for turn in episode.turns]
    return LearningFigures(
        turns=len(turns),
        calls=sum(map(count_calls, episodes)),
        unparsed=sum(map(count_unparsed, episodes)),
        cut=sum(map(count_cut, episodes)) / max(1, len(turns)),
        equal_groups=equal_groups([episode.reward for episode in group] for group in scored),
    )


def count_calls(episode: Episode) -> int:
    return sum(len(message.tool_calls) for message in episode.messages)


def count_unparsed(episode: Episode) -> int:
    return sum(bool(turn.parse_error) for turn in episode.turns)


def count_cut(episode: Episode) -> int:
    return sum(turn.completion.finish_reason is FinishReason.LENGTH for turn in episode.turns)


def equal_groups(groups: Iterable[Sequence[float]]) -> float | None:
    """Return the share of groups whose rewards are all equal; such a group has no gradient in GRPO.

    If no group has two members, all members count as one group. ``None`` if there are fewer than two members in total.

    >>> equal_groups([[1.0, 1.0], [0.0, 1.0]]), equal_groups([[0.0], [0.0]]), equal_groups([[0.0], []])
    (0.5, 1.0, None)
    """
    groups = list(groups)
    comparable = [group for group in groups if len(group) > 1] or [list(chain.from_iterable(groups))]
    if len(comparable[0]) < 2:
        return None
    return sum(max(group) - min(group) <= _ROUNDING for group in comparable) / len(comparable)


def learning_warnings(
    figures: LearningFigures,
    advice: Advice,
    *,
    tools: Callable[[], Collection[str]],
    unparsed_turn: Callable[[], Turn | None],
) -> list[str]:
    """Return one line per sign that the policy cannot learn from these episodes, with a remedy.

    ``tools`` and ``unparsed_turn`` are called only if a warning needs them.
    """
    warnings: list[str] = []
    if not figures.turns:  # ``verl/records/step_checks.py`` reports failed steps
        return warnings
    if not figures.calls and not figures.unparsed and (names := tools()):
        warnings.append(
            f"no episode called a tool, but the environment has {', '.join(names)}: look at the first prompt "
            "(turntree check ENV --model DIR), or train on demonstrations first (turntree sft)"
        )
    if figures.equal_groups == 1.0:
        warnings.append(
            "the rewards are equal in every group, so training has no gradient: use easier or harder tasks, sample "
            "at a higher temperature, or reward a part of the task, such as a parsed tool call"
        )
    attempted = figures.calls + figures.unparsed
    if figures.unparsed > MANY * attempted:
        example = _example(unparsed_turn(), advice, tools())
        warnings.append(f"{figures.unparsed:.0f} of {attempted:.0f} tool calls could not be parsed{example}")
    if figures.cut > advice.many_cut:
        warnings.append(
            f"{figures.cut:.0%} of the turns were cut off at a token limit, so calls and answers may be missing: "
            f"raise {advice.token_limit}"
        )
    return warnings


def _example(turn: Turn | None, advice: Advice, tools: Collection[str]) -> str:
    compare = "compare it with the first prompt (turntree check ENV --model DIR)"
    if turn is None:
        return f": {compare}"
    name = likely_format(turn.text, list(tools))
    if name is None:
        return f", such as {shortened(turn.text)!r} ({shortened(turn.parse_error)}): {compare}"
    return f", such as {shortened(turn.text)!r}: it looks like the format {name}; try {advice.tool_format}={name}"


def shortened(text: str) -> str:
    """Return the text in one line; a long text loses its middle.

    >>> shortened("I will " + "think " * 40 + "add(1, 2)")
    'I will think think think think think think think ... think think think think think think add(1, 2)'
    """
    text, half = " ".join(text.split()), _QUOTED_LENGTH // 2
    return text if len(text) <= _QUOTED_LENGTH else f"{text[:half].rstrip()} ... {text[-half:].lstrip()}"
