import asyncio
from pathlib import Path
from typing import Any

import pytest
from field_templates import field_tokenizer
from tiny_llama import save_chat_llama

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.engines.protocol import FinishReason, Sampling, TurnRequest
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.record import episode_from_dict, episode_to_dict
from turntree.agents.episodes.token_view import TokenView
from turntree.agents.errors import RenderError
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.loop.thinking_budget import within_budget
from turntree.envs import make
from turntree.envs.limits import Limits

LONG = "the answer tool user answer " * 9
CLOSED = "\n</think>\n\n"


async def played(*texts: str, template: str = "DeepSeek R1", most: int | None = 6) -> Any:
    tokenizer = field_tokenizer(template)
    renderer = Renderer(tokenizer, max_thinking_tokens=most)
    env = make("turntree/Arithmetic-v0", system_prompt="")
    script = [*texts, f"#### {env.unwrapped.task(0).answer}"]
    limits = Limits(max_turn_tokens=200)
    return renderer, await rollout(env, ScriptedEngine(script, tokenizer), renderer, limits, index=0)


async def test_a_thought_that_is_too_long_is_closed_and_the_answer_goes_on() -> None:
    renderer, episode = await played(LONG)
    (turn,) = episode.turns
    assert episode.reward > 0
    assert turn.text.startswith(renderer.template.opened + LONG[:5])
    assert CLOSED + "#### " in turn.text
    said = turn.completion
    assert [token for token, forced in zip(said.token_ids, said.forced, strict=True) if forced] == list(
        renderer.template.tokens(CLOSED)
    )
    assert len(said.logprobs) == len(said.token_ids) == len(said.forced)
    view = TokenView.of(episode_from_dict(episode_to_dict(episode)))
    assert view.mask == tuple(0 if forced else 1 for forced in said.forced)
    assert all((level > 0) == (mask == 1) for level, mask in zip(view.levels, view.mask, strict=True))


@pytest.mark.parametrize(
    ("text", "template", "most"),
    [("ok</think>", "DeepSeek R1", 4), (LONG, "Qwen3", 6), (LONG, "DeepSeek R1", 150)],
    ids=["a thought that has ended", "a turn without a thought", "a thought within the bound"],
)
async def test_nothing_else_is_closed(text: str, template: str, most: int) -> None:
    """Control: the second half is requested if a turn continues, and nothing is inserted."""
    _, episode = await played(text, template=template, most=most)
    assert episode.turns[0].completion.forced == ()
    assert "\n</think>" not in episode.turns[0].text


async def test_a_turn_without_room_for_an_answer_is_cut_as_without_a_bound() -> None:
    tokenizer = field_tokenizer("DeepSeek R1")
    engine = within_budget(ScriptedEngine([LONG], tokenizer), Renderer(tokenizer, max_thinking_tokens=6))
    done = await engine.generate(TurnRequest((1, 2), Sampling(max_tokens=8, stop_token_ids=(1,))))
    assert (len(done.token_ids), done.finish_reason, done.forced) == (6, FinishReason.LENGTH, ())


def test_templates_without_thoughts_have_no_bound() -> None:
    with pytest.raises(RenderError, match="has no thoughts"):
        Renderer(field_tokenizer("SmolLM2"), max_thinking_tokens=6)


def test_a_bounded_turn_depends_on_its_seed_alone_and_begins_as_one_without_a_bound(tmp_path: Path) -> None:
    tokenizer = field_tokenizer("Qwen3")
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    folder = save_chat_llama(tmp_path, tokenizer)
    free, bound = Renderer(tokenizer), Renderer(tokenizer, max_thinking_tokens=8)
    prompt = free.initial([{"role": "user", "content": "What is 6*7?"}])
    request = TurnRequest(prompt, Sampling(max_tokens=24, seed=3))
    config = LocalEngineConfig(max_batch=2, max_context=128, threads=1)

    async def turns() -> list[Any]:
        with LocalEngine.from_pretrained(folder, config=config) as engine:
            return [await within_budget(engine, renderer).generate(request) for renderer in (free, bound, bound)]

    plain, one, other = asyncio.run(turns())
    assert plain.forced == ()
    assert one.token_ids == other.token_ids
    assert one.token_ids[:8] == plain.token_ids[:8]
    assert (len(one.token_ids), sum(one.forced)) == (24, len(bound.template.tokens(CLOSED)))
