from typing import Any

import pytest

from turntree.agents.engines.protocol import Engine, FinishReason, Sampling, TurnRequest
from turntree.agents.engines.scripted import ScriptedEngine, ScriptEnded

STOP = Sampling(stop_token_ids=(2, 0))


async def test_texts_come_one_a_call_each_ended_by_the_first_stop_token_or_cut(chatml: Any) -> None:
    engine = ScriptedEngine(["46", "#### 46"], chatml)
    said = [await engine.generate(TurnRequest((5,), STOP)) for _ in range(2)]
    assert [chatml.decode(c.token_ids, skip_special_tokens=True) for c in said] == ["46", "#### 46"]
    assert all(c.token_ids[-1] == 2 and c.finish_reason is FinishReason.STOP for c in said)
    assert all(len(c.logprobs) == len(c.token_ids) for c in said)
    completion = await ScriptedEngine(["answer"], chatml).generate(
        TurnRequest((5,), Sampling(max_tokens=1, stop_token_ids=(2,)))
    )
    assert (len(completion.token_ids), completion.finish_reason) == (1, FinishReason.LENGTH)


async def test_a_function_answers_by_the_prompt(chatml: Any) -> None:
    engine = ScriptedEngine(lambda prompt: "wait" * len(prompt), chatml)
    completion = await engine.generate(TurnRequest((5, 6, 7), STOP))
    assert chatml.decode(completion.token_ids[:-1]) == "waitwaitwait"


async def test_a_script_that_is_over_says_how_long_it_was(chatml: Any) -> None:
    engine = ScriptedEngine(["46"], chatml)
    assert isinstance(engine, Engine)
    await engine.generate(TurnRequest((5,), STOP))
    with pytest.raises(ScriptEnded, match="has 1 texts"):
        await engine.generate(TurnRequest((5,), STOP))
