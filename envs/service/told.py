"""Check whether the agent told the customer all required values.

Listing every number does not count as telling a value. A message therefore counts only if it is short and contains few
numbers, and the agent may introduce only few numbers that neither a tool nor the customer has named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from turntree.envs.message import Message, Role

MAX_MESSAGE = 2_000  #: characters of a message that can count
MAX_NUMBERS = 24  #: different numbers in a message that can count
MAX_NEW_NUMBERS = 6  #: different numbers that the agent may introduce, in addition to two per required value
_NUMBER = re.compile(r"(?<![\w#.,-])\d[\d,]*(?:\.\d+)?(?![\w-])")
_ANY_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_REFUSAL = re.compile(
    r"\b(?:can ?not|unable|not (?:able|possible|allowed|permitted|eligible|available|support\w*)|impossible|sorry|"
    r"refus\w+|declin\w+|isn't possible|no longer|nothing (?:was|is|has been|will be) (?:changed|cancel\w+|done))\b|"
    r"\b(?:can|wo|could|is|are|does|do)n['\u2019]t\b",
    re.IGNORECASE,
)


def told(wanted: Sequence[str], dialogue: Sequence[Message]) -> bool:
    """Return whether the agent told the customer every required value.

    Args:
        wanted: The required numbers and words, in any order.
    """
    messages = said_to_user(dialogue)
    known = {
        number
        for message in dialogue
        if message.role is not Role.ASSISTANT
        for number in map(_decimal, _ANY_NUMBER.findall(message.content))
    }
    # Limit new numbers: an agent that lists every number would always name the right number.
    introduced = {number for text in messages for number in _numbers(text)} - known
    if len(introduced) > MAX_NEW_NUMBERS + 2 * len(wanted):
        return False
    answers = [text for text in messages if len(text) <= MAX_MESSAGE and len(_numbers(text)) <= MAX_NUMBERS]
    return all(any(_says(text, value) for text in answers) for value in wanted)


def refused(dialogue: Sequence[Message]) -> bool:
    return any(_REFUSAL.search(text) for text in said_to_user(dialogue))


def said_to_user(dialogue: Sequence[Message]) -> list[str]:
    """Return the agent's messages to the customer: the agent's turns that are not followed by a tool message."""
    following = [*(message.role for message in dialogue[1:]), None]
    return [
        message.spoken
        for message, after in zip(dialogue, following, strict=True)
        if message.role is Role.ASSISTANT and after is not Role.TOOL
    ]


def _numbers(text: str) -> set[Decimal]:
    return {_decimal(number) for number in _NUMBER.findall(text)}


def _decimal(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))


def _says(text: str, wanted: str) -> bool:
    # Words must occur as whole words. Numbers are compared by value: ``$1,080.10`` equals ``1080.1``.
    if _NUMBER.fullmatch(wanted):
        return _decimal(wanted) in _numbers(text)
    words = " ".join(wanted.lower().split())
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", " ".join(text.lower().split())) is not None
