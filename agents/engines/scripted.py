"""An engine that returns given texts, for tests, demonstrations and dry runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from turntree.agents.engines.protocol import Completion, FinishReason, TurnRequest
from turntree.agents.errors import AgentError


class ScriptEnded(AgentError):
    """More turns were requested than the script has."""


class ScriptedEngine:
    """An engine that returns the texts of a script, each ended by the turn's first stop token.

    Args:
        script: The texts in the order of the calls, or a function from the prompt's token ids to the text, which
            concurrent episodes can share.
        tokenizer: A Hugging Face tokenizer; texts are tokenised without special tokens around them.
    """

    def __init__(self, script: Iterable[str] | Callable[[tuple[int, ...]], str], tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._next_text = script if callable(script) else _in_order(script)

    async def generate(self, request: TurnRequest) -> Completion:
        """Return the next text, cut at ``sampling.max_tokens``; log-probabilities are 0.

        Raises:
            ScriptEnded: If no text is left.
        """
        sampling = request.sampling
        tokens = turn_tokens(self._next_text(tuple(request.prompt_ids)), self._tokenizer, sampling.stop_token_ids)
        cut = len(tokens) > sampling.max_tokens or not sampling.stop_token_ids
        tokens = tokens[: sampling.max_tokens]
        return Completion(
            token_ids=tuple(tokens),
            logprobs=(0.0,) * len(tokens),
            finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
        )


def turn_tokens(text: str, tokenizer: Any, stop_token_ids: Sequence[int]) -> list[int]:
    """Return a turn's text as a policy would sample it, ended by the first stop token unless it ends with one."""
    tokens = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    # Some tool-call formats already end with a stop token.
    ended = bool(tokens) and tokens[-1] in stop_token_ids
    return tokens if ended else tokens + list(stop_token_ids[:1])


def _in_order(texts: Iterable[str]) -> Callable[[tuple[int, ...]], str]:
    left = iter(texts)
    used = 0

    def next_text(_: tuple[int, ...]) -> str:
        nonlocal used
        for text in left:
            used += 1
            return text
        raise ScriptEnded(f"the script has {used} texts, and one more was requested; add a text to the script")

    return next_text
