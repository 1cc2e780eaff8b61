"""A client of a server started by ``sglang serve``, with token ids in and out.

If turntree is installed in SGLang's environment, the server samples seeded requests as ``SglangEngine`` does. With
``--speculative-algorithm TURNTREE``, the server also drafts. ``python -m sglang.launch_server`` of 0.5.12 parses its
arguments before it loads plugins, so it does not know ``TURNTREE``: use ``NGRAM`` there, with
``TURNTREE_SGLANG='{"replace_ngram": true}'``. If turntree is not installed there, the server ignores seeds, and a turn
may also end at the model's own end tokens.

No text is sent or received. The limits of SGLang are listed in ``engine``; weights can only be updated from a
checkpoint.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from turntree.agents.engines.served.turns import ServedTurns
from turntree.agents.engines.server_client import ServerClient, ServerError
from turntree.agents.engines.sglang.dialect import SglangDialect, reverifies_drafts, wait_until


class SglangServer(ServedTurns):
    """Generate and score turns with an SGLang server at ``base_url``.

    >>> engine = SglangServer("http://localhost:30000")  # doctest: +SKIP
    >>> turn = await engine.generate(prompt_ids, Sampling(max_tokens=64))  # doctest: +SKIP

    ``max_context=None`` leaves the limit of prompt and response together to the server. ``vocabulary`` is needed to
    score with sampling parameters other than temperature 1. With ``speculates``, sampling parameters that drafts do not
    support are refused. ``seconds`` is the time limit of a turn. Raises ``MissingExtra`` if httpx is not installed.
    """

    def __init__(
        self,
        base_url: str,
        *,
        max_context: int | None = None,
        vocabulary: int | None = None,
        speculates: bool = True,
        seconds: float = 600.0,
        transport: Any = None,
    ) -> None:
        dialect = SglangDialect(speculates=speculates, vocabulary=vocabulary)
        super().__init__(dialect, max_context=max_context, vocabulary=vocabulary)
        self._client = ServerClient(
            base_url,
            kind="an SGLang server",
            command="the SGLang server",
            extra="sglang",
            seconds=seconds,
            transport=transport,
        )

    def update_weights_from_disk(self, model: str | Path, *, version: int | None = None) -> None:
        """Load a checkpoint, a directory on the server, once running requests have ended.

        Keys and values are dropped, the draft store is kept. ``version=None`` adds 1 to the version.

        Raises:
            ServerError: If the server refuses the weights.
            TimeoutError: If running requests did not end.
        """
        self.reset_prefix_cache()
        answer = self._client.call(self._post("/update_weights_from_disk", {"model_path": str(model)})).json()
        if not answer.get("success"):
            raise ServerError(f"the server refused the weights: {answer.get('message')}")
        self._updated(version)

    def reset_prefix_cache(self) -> None:
        """Drop all keys and values, once running requests have ended; keep the draft store."""
        wait_until(lambda: self._client.call(self._flushed()))

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        self._client.close()

    async def _ask(self, name: str, asked: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = (await self._client.run(self._turn({**asked, "rid": name}))).json()
        return answer

    async def _reverifies(self) -> bool:
        reply = await self._client.run(self._client.answer("GET", "/server_info"))
        return reply.status_code == 200 and reverifies_drafts(reply.json().get("internal_states", []))

    async def _turn(self, arguments: dict[str, Any]) -> Any:
        try:
            return await self._post("/generate", arguments)
        except asyncio.CancelledError:
            # The server would generate the whole turn although nobody reads it.
            await asyncio.shield(self._post("/abort_request", {"rid": arguments["rid"]}))
            raise

    async def _flushed(self) -> bool:
        return bool((await self._client.answer("POST", "/flush_cache", {})).status_code == 200)

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        return await self._client.accepted("POST", path, body)
