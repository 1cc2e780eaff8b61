"""Whether the agent told the customer all required values.

Invariant: a value counts where it is an answer, not where it occurs in a list of everything: a message has few
numbers and is short, and a whole dialogue has few that neither a tool nor the customer had named before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from turntree.envs.message import Message, Role

MAX_MESSAGE = 2_000
"""Most characters of a message that tells something."""
MAX_NUMBERS = 24
"""Most different numbers in a message that tells something."""
MAX_GUESSES = 6
"""Different numbers that an agent may introduce, beside two for each required value."""
_NUMBER = re.compile(r"(?<![\w#.,-])\d[\d,]*(?:\.\d+)?(?![\w-])")
_ANY_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_REFUSAL = re.compile(
    r"\b(?:can ?not|unable|not (?:able|possible|allowed|permitted|eligible|available|support\w*)|impossible|sorry|"
    r"refus\w+|declin\w+|isn't possible|no longer|nothing (?:was|is|has been|will be) (?:changed|cancel\w+|done))\b|"
    r"\b(?:can|wo|could|is|are|does|do)n['\u2019]t\b",
    re.IGNORECASE,
)


def told(wanted: Sequence[str], dialogue: Sequence[Message]) -> bool:
    """Whether every value was told to the customer.

    Args:
        wanted: The required numbers and words, in any order.
    """
    said = said_to_user(dialogue)
    named = {
        number
        for message in dialogue
        if message.role is not Role.ASSISTANT
        for number in map(_decimal, _ANY_NUMBER.findall(message.content))
    }
    own = {number for text in said for number in _numbers(text)} - named
    if len(own) > MAX_GUESSES + 2 * len(wanted):
        return False
    answers = [text for text in said if len(text) <= MAX_MESSAGE and len(_numbers(text)) <= MAX_NUMBERS]
    return all(any(_says(text, value) for text in answers) for value in wanted)


def refused(dialogue: Sequence[Message]) -> bool:
    """Whether the agent told the customer that something cannot be done."""
    return any(_REFUSAL.search(text) for text in said_to_user(dialogue))


def said_to_user(dialogue: Sequence[Message]) -> list[str]:
    """The agent's messages that no tool answered: neither calls nor failed attempts at one."""
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
    """Whether a text contains a value as a separate word; numbers by value, ``$1,080.10`` for ``1080.1``."""
    if _NUMBER.fullmatch(wanted):
        return _decimal(wanted) in _numbers(text)
    words = " ".join(wanted.lower().split())
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", " ".join(text.lower().split())) is not None
