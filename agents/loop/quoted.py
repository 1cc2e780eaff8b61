"""Texts of others in a prompt: what somebody wrote must not end a message of the template or begin another's."""

from __future__ import annotations

import re

from turntree.agents.loop.renderer import Renderer


class Quoted:
    """Breaks up the special tokens of a tokenizer in texts.

    Args:
        renderer: Of the tokenizer.
    """

    def __init__(self, renderer: Renderer) -> None:
        tokenizer = renderer.tokenizer
        tokens = {str(token) for token in tokenizer.added_tokens_decoder.values()}
        tokens |= {renderer.decode([number], special_tokens=True) for number in tokenizer.all_special_ids}
        longest_first = sorted((token for token in tokens if len(token) > 1), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def __call__(self, text: str) -> str:
        """The text with a space in every special token, and without lone surrogates, which have no tokens."""
        shown = text.encode("utf-8", "replace").decode()
        return broken_up(shown, self._special)


def broken_up(text: str, special: re.Pattern[str]) -> str:
    """The text with a space in everything that ``special`` finds, also in what the spaces bring together."""
    while special.search(text):
        text = special.sub(lambda token: f"{token.group()[0]} {token.group()[1:]}", text)
    return text
