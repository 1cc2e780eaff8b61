"""Built-in rewards: the graded answer, and small shaping rewards. All values lie in [0, 1]."""

from __future__ import annotations

import re
from collections.abc import Sequence

from turntree.rewards.answer_format import EXACT, answer_format_for
from turntree.rewards.errors import UnknownAnswerFormat
from turntree.rewards.reading.boxes import find_boxes
from turntree.rewards.reading.extract import extract
from turntree.rewards.registry import reward
from turntree.rewards.result import Status
from turntree.rewards.sample import Sample
from turntree.rewards.score import score_batch

_OPEN = re.compile(r"<think(?:ing)?>")
_CLOSE = re.compile(r"</think(?:ing)?>")
_DEFAULT_TURNS = 8


@reward("answer", group=True, decides=True)
def answer(samples: Sequence[Sample]) -> list[float | None]:
    """Return 1 for a right answer in the last turn, 0 for a wrong answer, ``None`` for an ungraded answer."""
    answer_formats = []
    for sample in samples:
        try:
            answer_formats.append(answer_format_for(sample.data_source))
        except UnknownAnswerFormat:
            answer_formats.append(EXACT)
    scores = score_batch(
        [sample.answer_text for sample in samples],
        [sample.gold for sample in samples],
        answer_formats,
        questions=[sample.question for sample in samples],
    )
    return [None if entry.correct is None else entry.score for entry in scores]


@reward("answer_format")
def answer_format(sample: Sample) -> float:
    r"""Return 1 if the last turn gives one answer in a box or after ``####``, else 0."""
    boxes = find_boxes(sample.answer_text)
    if boxes is not None:
        return float(boxes.status is Status.OK and len(boxes.contents) == 1)
    return float("####" in sample.answer_text and extract(sample.answer_text).found is not None)


@reward("think_format")
def think_format(sample: Sample) -> float:
    """Return 1 if every turn has at most one thought and closes it, else 0."""
    for turn in sample.turns:
        opened, closed = len(_OPEN.findall(turn)), len(_CLOSE.findall(turn))
        if closed > 1 or opened > closed:
            return 0.0
    return 1.0


@reward("few_turns")
def few_turns(sample: Sample) -> float:
    """Return 1 for one turn, falling linearly to 0 at ``metadata["max_turns"]`` turns (default 8)."""
    most = max(2, int(sample.metadata.get("max_turns", _DEFAULT_TURNS)))
    return min(1.0, max(0.0, (most - len(sample.turns)) / (most - 1)))


@reward("tool_use")
def tool_use(sample: Sample) -> float:
    """Return the fraction of tool calls that did not fail through the policy's fault; 0 without calls."""
    if sample.tool_calls <= 0:
        return 0.0
    return max(0.0, 1.0 - sample.tool_errors / sample.tool_calls)


@reward("finished")
def finished(sample: Sample) -> float:
    """Return 1 if no limit ended the attempt, else 0."""
    return float(not sample.truncated)


@reward("shortest_right", group=True)
def shortest_right(samples: Sequence[Sample]) -> list[float]:
    """Return 1 for a task's shortest right sample, 0 for its longest right sample and for wrong samples."""
    right = [index for index, value in enumerate(answer(samples)) if value]
    lengths = {index: sum(map(len, samples[index].turns)) for index in right}
    values = [0.0] * len(samples)
    if right:
        low, high = min(lengths.values()), max(lengths.values())
        for index in right:
            values[index] = 1.0 if high == low else (high - lengths[index]) / (high - low)
    return values
