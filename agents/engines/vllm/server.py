"""A client of a server started by ``vllm serve``, with token ids in and out.

Install turntree in the server's environment: turntree's vLLM plugin then samples requests with a seed, and drafts.
Start the server with these options:

    vllm serve MODEL --logprobs-mode processed_logprobs --max-logprobs -1 \\
        --enable-prompt-tokens-details [--speculative-config JSON]

No text is sent or received. The limits of vLLM are listed in ``engine``. In addition, answers have no draft counters
(``verify_steps`` is 0, "not counted"), and weights cannot be updated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from turntree.agents.engines.protocol import Completion, Sampling, Scores
from turntree.agents.engines.request_wire import flat
from turntree.agents.engines.served.turns import ServedTurns
from turntree.agents.engines.server_client import ServerClient, ServerError
from turntree.agents.engines.token_logprobs import TokenLogprobs, reshapes
from turntree.agents.engines.vllm.dialect import VllmDialect, VllmRequest, completion, scoring_parameters

_TOKEN = "token_id:"
_MINUS_INFINITY = -9999.0  #: the server's value for minus infinity


class VllmServer(ServedTurns):
    """Generate and score turns with a vLLM server at ``base_url``; ``model`` defaults to the server's first model.

    >>> engine = VllmServer("http://localhost:8000")  # doctest: +SKIP
    >>> turn = await engine.generate(prompt_ids, Sampling(max_tokens=64))  # doctest: +SKIP

    With ``speculates``, sampling parameters that vLLM does not apply to drafts are refused. ``seconds`` is the time
    limit of a turn.

    Raises:
        MissingExtra: If httpx is not installed.
        ServerError: If the server or the model does not exist.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        speculates: bool = True,
        seconds: float = 600.0,
        transport: Any = None,
    ) -> None:
        self._client = ServerClient(
            base_url.rstrip("/").removesuffix("/v1"),
            kind="a vLLM server",
            command="`vllm serve`",
            extra="vllm",
            seconds=seconds,
            transport=transport,
        )
        try:
            self.model, max_context = self._client.call(self._find(model))
        except BaseException:
            self.close()
            raise
        super().__init__(_HttpDialect(speculates=speculates), max_context=max_context, vocabulary=None)

    async def score(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """Score tokens at temperature 1 without top-p, top-k and min-p.

        Other temperatures and truncations raise ``ValueError``: they need log-probabilities of the whole vocabulary at
        every position, which is too much for HTTP. Use ``VllmEngine`` instead.
        """
        if reshapes(sampling):
            raise ValueError(
                "a vLLM server scores only at temperature 1 without top_p, top_k and min_p, got temperature="
                f"{sampling.temperature}, top_p={sampling.top_p}, top_k={sampling.top_k}, min_p={sampling.min_p}; use "
                "VllmEngine"
            )
        return await super().score(prompt_ids, token_ids, sampling, top=top)

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        self._client.close()

    async def _find(self, model: str | None) -> tuple[str, int | None]:
        served = (await self._client.accepted("GET", "/v1/models")).json()["data"]
        for card in served:
            if model is None or card["id"] == model:
                return card["id"], card.get("max_model_len")
        names = ", ".join(card["id"] for card in served)
        raise ServerError(f"the server has no model {model!r}; it has {names or 'none'}")

    async def _ask(self, name: str, asked: VllmRequest) -> dict[str, Any]:
        return await self._client.run(self._completion(dict(asked.fields), asked.prompt))

    async def _completion(self, fields: dict[str, Any], prompt: list[int]) -> dict[str, Any]:
        body = {"model": self.model, "prompt": prompt, "return_token_ids": True, "return_tokens_as_token_ids": True}
        entries = fields.pop("extra_args", None)
        extra_body = {"vllm_xargs": flat(entries)} if entries else {}
        reply = await self._client.accepted("POST", "/v1/completions", {**body, **fields, **extra_body})
        answer: dict[str, Any] = reply.json()
        return answer


class _HttpDialect(VllmDialect):
    # JSON answers lack the tokens that re-verification draws at a draft's positions, so nothing is re-verified.

    def reverifies(self, sampling: Sampling) -> bool:
        return False

    def scoring(self, whole: Sequence[int], known: int, top: int) -> VllmRequest:
        return VllmRequest(prompt=list(whole), fields=scoring_parameters(top))

    def completion(self, answer: Mapping[str, Any], sampling: Sampling) -> Completion:
        choice = answer["choices"][0]
        logprobs = _sampled(choice, sampling.top_logprobs)
        turn = completion(choice["token_ids"], logprobs, choice["finish_reason"], sampling)
        return replace(turn, cached_tokens=_cached(answer))

    def scored(self, answer: Mapping[str, Any], tokens: Sequence[int], top: int) -> tuple[TokenLogprobs, int]:
        choice = answer["choices"][0]
        given = choice["prompt_logprobs"][-len(tokens) :] if tokens else []
        rows = [{int(token): entry["logprob"] for token, entry in row.items()} for row in given]
        return TokenLogprobs.from_rows(tokens, rows, top).then(_sampled(choice, top)), _cached(answer)


def _sampled(choice: Mapping[str, Any], top: int) -> TokenLogprobs:
    rows = [_row(row) for row in choice["logprobs"]["top_logprobs"]]
    return TokenLogprobs.from_rows(choice["token_ids"], rows, top)


def _cached(answer: Mapping[str, Any]) -> int:
    return ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def _row(entries: Mapping[str, float]) -> dict[int, float]:
    try:
        return {
            int(name.removeprefix(_TOKEN)): -np.inf if value <= _MINUS_INFINITY else value
            for name, value in entries.items()
        }
    except ValueError as error:
        raise ServerError(
            f"expected log-probabilities by {_TOKEN}NUMBER, got {next(iter(entries))!r}; the server is too old for "
            "return_tokens_as_token_ids"
        ) from error
