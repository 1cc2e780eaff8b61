import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from turntree.agents.engines.protocol import Sampling
from turntree.agents.verl.serving.restarts import ServerLife

pytestmark = pytest.mark.vllm
TOKENS, LOGPROBS = [5, 6, 7], [-0.5, -1.5, -2.5]


class Engine:
    errored = False

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.asked = fails, []
        self.outputs = 0
        self.landed, self.go_on = asyncio.Event(), asyncio.Event()

    async def add_request(self, parameters: Any) -> None:
        self.asked.append(parameters)
        self.landed.set()

    async def generate(self, *, sampling_params: Any, **_: Any) -> AsyncIterator[Any]:
        from vllm.sampling_params import RequestOutputKind

        await self.add_request(sampling_params)
        for count in range(1, len(TOKENS) + 1):
            if count == len(TOKENS):
                await self.go_on.wait()
                if self.fails:
                    raise RuntimeError("the engine is lost")
            if count == len(TOKENS) or sampling_params.output_kind is RequestOutputKind.CUMULATIVE:
                self.outputs += 1
                yield self._output(count, flat=sampling_params.flat_logprobs)

    def _output(self, count: int, *, flat: bool) -> Any:
        from vllm.logprobs import FlatLogprobs, Logprob

        logprobs: Any = FlatLogprobs() if flat else []
        for token, logprob in zip(TOKENS[:count], LOGPROBS, strict=False):
            logprobs.append({token: Logprob(logprob)})
        said = SimpleNamespace(token_ids=TOKENS[:count], logprobs=logprobs, finish_reason="stop")
        return SimpleNamespace(outputs=[said], num_cached_tokens=0)


def serving(engine: Engine) -> Any:
    from turntree.agents.verl.serving.vllm_replica import DraftingVllmServer, note_requests

    server = DraftingVllmServer.__new__(DraftingVllmServer)
    config = {"max_model_len": 64, "full_determinism": False, "enable_rollout_routing_replay": False, "mtp": None}
    server.config = type("Config", (SimpleNamespace,), {"get": lambda self, _, default: default})(**config)
    vars(server).update(
        engine=engine, model_config=SimpleNamespace(processor=None, lora_rank=0, lora={}), draft_tokens=0,
        replica_rank=0, global_steps=0, _disaggregation_role=None, _submission_paused=False, _admitting=0,
    )  # fmt: skip
    server._life = ServerLife(0)
    note_requests(server)
    return server


async def ask(server: Any, engine: Engine) -> tuple[Any, int]:
    # vLLM's answer, and the admissions that an abort would have waited for while the request ran.
    from turntree.agents.engines.vllm.dialect import VllmRequest, parameters
    from turntree.agents.verl.serving.vllm_replica import _ServerTurns

    turns = _ServerTurns.__new__(_ServerTurns)
    turns._server = server
    fields = parameters(Sampling(max_tokens=3), speculates=False)
    asked = asyncio.create_task(turns._ask("a", VllmRequest(prompt=[1, 2], fields=fields)))
    landed = asyncio.create_task(engine.landed.wait())
    await asyncio.wait({asked, landed}, return_when=asyncio.FIRST_COMPLETED)  # one that fails early lands never
    landed.cancel()
    waited = server._admitting
    engine.go_on.set()
    return await asked, waited


async def test_a_request_is_answered_at_its_end_and_no_abort_waits_for_it() -> None:
    engine = Engine()
    answer, waited = await ask(serving(engine), engine)
    assert answer.outputs[0].token_ids == TOKENS
    assert engine.outputs == 1
    assert (engine.asked[0].detokenize, engine.asked[0].flat_logprobs) == (False, True)
    unseen = Engine()
    server = serving(unseen)
    del unseen.add_request  # the control: nobody notes that vLLM has it
    _, would_wait = await ask(server, unseen)
    assert (waited, would_wait) == (0, 1), "an abort of verl's waits for requests that it takes for not begun"


async def test_requests_of_others_are_left_as_they_are() -> None:
    engine = Engine()
    engine.go_on.set()
    answer = await serving(engine).generate([1, 2], {"max_tokens": 3, "logprobs": True}, "a")
    assert (answer.token_ids, answer.log_probs, answer.stop_reason) == (TOKENS, LOGPROBS, "completed")
    assert engine.outputs == 3


async def test_a_request_that_fails_is_counted_off_once() -> None:
    engine = Engine(fails=True)
    server = serving(engine)
    with pytest.raises(RuntimeError, match="lost"):
        await ask(server, engine)
    assert server._admitting == 0
