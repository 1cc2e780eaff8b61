r"""Extraction of the answer that a text gives as final.

The last ``\boxed{}`` outside of ``<think>`` counts. Without a box: ``<answer>``, then ``#### x``, then "answer is
x", then the last number or formula. Time is linear in the text, and nothing is evaluated. Comments and thoughts
are not part of the answer.
"""

from __future__ import annotations

from typing import NamedTuple

from turntree.rewards.answer_format import EXACT, AnswerFormat, Kind
from turntree.rewards.limits import MAX_ANSWER, MAX_TEXT
from turntree.rewards.reading import flags
from turntree.rewards.reading.boxes import REDEFINED, Boxes, find_boxes, lone_number
from turntree.rewards.reading.prose import from_anchor, from_mark, from_tag, from_tail, last_options
from turntree.rewards.reading.thoughts import may_think, without_thoughts
from turntree.rewards.reading.visible import without_comments, without_hidden
from turntree.rewards.result import Status

_AROUND = " \n.,*$()[]\\"  #: characters that may surround the answer if the text is only the answer


class Answer(NamedTuple):
    """The answer extracted from a text."""

    text: str  #: LaTeX or plain text
    #: all boxes of the sequence that ends with the answer, in order; empty if the answer stands alone
    candidates: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()  #: other values that the text offers ("5 or 6"); each must be right, too
    prose: bool = False  #: whether the answer was cut out of a sentence, so that words may surround it
    guessed: bool = False  #: whether no phrase names the answer, so it is the last value in the prose or a "result"


class Extraction(NamedTuple):
    """The result of an extraction."""

    found: Answer | None  #: ``None`` unless ``status`` is ok
    status: Status = Status.OK  #: ok, or why there is no answer to compare
    flags: tuple[str, ...] = ()  #: suspected reward hacks

    @property
    def answer(self) -> str | None:
        """The text of the answer, ``None`` if there is none."""
        return self.found.text if self.found is not None else None


def extract(text: str, answer_format: AnswerFormat = EXACT) -> Extraction:
    r"""Find the final answer of a text.

    Args:
        text: The policy's own text.
        answer_format: Rules of the data set; option letters are searched differently from values.

    Returns:
        The answer, or the reason why there is none.

    Example:
        >>> extract("The answer is 3. No: #### 4").answer
        '4'
    """
    if (number := lone_number(text)) is not None:
        return Extraction(Answer(number), Status.OK, (flags.GRADER_TALK,) if flags.speaks_to_grader(text) else ())
    visible, thought = without_thoughts(text[-MAX_TEXT:]) if may_think(text) else (text[-MAX_TEXT:], "")
    found_flags: tuple[str, ...] = ()
    if ("let\\" in visible or "def\\" in visible or "command" in visible) and REDEFINED.search(visible):
        return Extraction(None, Status.HACK_SUSPECT, (flags.PHANTOM,))
    shown = without_hidden(without_comments(visible) if "<!--" in visible else visible)
    if shown != visible:
        visible, found_flags = shown, (flags.PHANTOM,)
    if flags.speaks_to_grader(visible):
        found_flags += (flags.GRADER_TALK,)
    boxes = find_boxes(visible)
    if boxes is not None:
        return _from_boxes(boxes, found_flags + boxes.flags)
    phrase = from_tag(visible) or from_mark(visible)
    beside: tuple[str, ...] = ()
    guessed = False
    if phrase is None and (anchored := from_anchor(visible)) is not None:
        if anchored.negated:
            return Extraction(None, Status.HACK_SUSPECT, (*found_flags, flags.NEGATION))
        phrase, beside, guessed = anchored.phrase, anchored.beside, anchored.of_a_step
    # If a text addresses its grader, its last value is not trusted as the answer.
    if phrase is None:
        if flags.GRADER_TALK in found_flags:
            return Extraction(None, Status.HACK_SUSPECT, found_flags)
        tail = from_tail(visible)
        if tail.is_list:
            return Extraction(None, Status.HACK_SUSPECT, (*found_flags, flags.CANDIDATES))
        phrase = tail.phrase
        if answer_format.kind is Kind.OPTION:
            options = last_options(visible)
            if len(options) > 1:
                return Extraction(None, Status.HACK_SUSPECT, (*found_flags, flags.CANDIDATES))
            phrase = next(iter(options), None)
        # The last value in the prose counts as guessed, because no phrase names it as the answer. A text that consists
        # only of the value is not guessed.
        guessed = phrase is not None and visible.strip(_AROUND) != phrase.strip(_AROUND)
    if not phrase:
        in_thought = bool(thought) and extract(thought, answer_format).found is not None
        return Extraction(None, Status.NO_ANSWER, (*found_flags, flags.THINK_ONLY) if in_thought else found_flags)
    if phrase[0] == "~" and phrase[1:2].isdigit():
        return Extraction(None, Status.HACK_SUSPECT, (*found_flags, flags.HEDGE))
    if len(phrase) > MAX_ANSWER:
        return Extraction(None, Status.REJECTED_LIMITS, (*found_flags, flags.HUGE))
    return Extraction(Answer(phrase, (), beside, prose=True, guessed=guessed), Status.OK, found_flags)


def _from_boxes(boxes: Boxes, found_flags: tuple[str, ...]) -> Extraction:
    if boxes.status is not Status.OK:
        return Extraction(None, boxes.status, found_flags)
    run = boxes.contents if len(boxes.contents) > 1 else ()
    return Extraction(Answer(boxes.contents[-1], run, boxes.alternatives), Status.OK, found_flags)
