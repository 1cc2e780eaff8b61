"""Thoughts: how models write them."""

from __future__ import annotations

from typing import NamedTuple


class Thought(NamedTuple):
    """How a family of models writes its thoughts."""

    begin: str
    """Text with which one begins."""
    end: str
    """Text with which one ends."""
    closing: str
    """What closes one from outside, so that the answer follows."""

    def is_open(self, text: str) -> bool:
        """Whether a text ends within a thought."""
        return text.rfind(self.begin) > text.rfind(self.end)


THOUGHTS = (
    Thought("<think>", "</think>", "\n</think>\n\n"),
    Thought("[THINK]", "[/THINK]", "[/THINK]"),
    Thought("<|channel|>analysis", "<|end|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    Thought("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),
    Thought("<seed:think>", "</seed:think>", "</seed:think>"),
)
"""Those that are known: Qwen, DeepSeek and most others, Mistral, gpt-oss, Cohere, ByteDance."""
