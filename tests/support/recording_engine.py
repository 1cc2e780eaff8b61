"""An engine that notes what it was asked for and answers as it was told."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling
from turntree.spec_tree import DialogueState


class Asked(NamedTuple):
    prompt: tuple[int, ...]
    sampling: Sampling
    state: DialogueState | None


class RecordingEngine:
    """Gives its answers in order, the last one from then on: a turn; an exception, which is raised; an engine, which is
    asked; or a function of a request's prompt and sampling, ``async`` or not, that returns a turn."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.asked: list[Asked] = []
        self.options: list[dict[str, Any]] = []
        """What else each request said: a draft, whether it is ahead of its step."""

    @property
    def seeds(self) -> list[int | None]:
        return [asked.sampling.seed for asked in self.asked]

    async def generate(
        self, prompt_ids: Any, sampling: Sampling, *, state: DialogueState | None = None, **options: Any
    ) -> Completion:
        answer = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append(Asked(tuple(prompt_ids), sampling, state))
        self.options.append(options)
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer = answer(prompt_ids, sampling)
        elif not isinstance(answer, Completion):
            answer = answer.generate(prompt_ids, sampling, state=state, **options)
        turn: Completion = await answer if inspect.isawaitable(answer) else answer
        return turn


def a_turn(*tokens: int, **fields: Any) -> Completion:
    """A turn of these tokens, all certain, that ended by itself."""
    fields = {"logprobs": (0.0,) * len(tokens), "finish_reason": FinishReason.STOP, **fields}
    return Completion(token_ids=tokens, **fields)
