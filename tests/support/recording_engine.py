import inspect
from typing import Any

from turntree.agents.engines.protocol import Completion, FinishReason, TurnRequest


class RecordingEngine:
    """Record requests and give the answers in order, repeating the last one.

    An answer is a turn, an exception to raise, an engine to ask, or a function of prompt and sampling.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.asked: list[TurnRequest] = []

    @property
    def seeds(self) -> list[int | None]:
        return [asked.sampling.seed for asked in self.asked]

    async def generate(self, request: TurnRequest) -> Completion:
        answer = self.answers[min(len(self.asked), len(self.answers) - 1)]
        self.asked.append(request)
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer = answer(request.prompt_ids, request.sampling)
        elif not isinstance(answer, Completion):
            answer = answer.generate(request)
        turn: Completion = await answer if inspect.isawaitable(answer) else answer
        return turn


def a_turn(*tokens: int, **fields: Any) -> Completion:
    fields = {"logprobs": (0.0,) * len(tokens), "finish_reason": FinishReason.STOP, **fields}
    return Completion(token_ids=tokens, **fields)
