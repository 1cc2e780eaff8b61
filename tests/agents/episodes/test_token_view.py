from dataclasses import replace

import pytest
from adder import play

from turntree.agents.episodes.token_view import TokenView
from turntree.agents.loop.renderer import Renderer
from turntree.envs.limits import Limits


async def test_the_token_view_lays_the_turns_end_to_end(renderer: Renderer) -> None:
    episode, _ = await play(renderer, "call 4", "5")
    first, last = episode.turns
    marked = replace(
        first.completion,
        logprobs=tuple(-1.0 - i for i in range(len(first.completion.token_ids))),
        accepted=(True,) * len(first.completion.token_ids),
        levels="C" * len(first.completion.token_ids),
        behaviour_logprobs=(-0.5,) * len(first.completion.token_ids),
    )
    view = TokenView.of(replace(episode, turns=(replace(first, completion=marked), last)))
    assert view.prompt_ids + view.response_ids == last.prompt_ids + last.completion.token_ids
    lengths = {len(view.response_ids), len(view.mask), len(view.logprobs), len(view.accepted), len(view.levels)}
    assert len(lengths) == 1
    sampled = tuple(i for i, own in zip(view.response_ids, view.mask, strict=True) if own)
    assert sampled == first.completion.token_ids + last.completion.token_ids
    size = len(first.completion.token_ids)
    assert view.logprobs[:size] == marked.logprobs
    assert view.accepted == (True,) * size + (False,) * (len(view.mask) - size)
    assert view.levels[:size] == (3,) * size
    assert view.levels[size:] == view.mask[size:], "what nobody marked is level A, what nobody sampled is 0"
    assert view.behaviour_logprobs[:size] == (-0.5,) * size
    assert view.behaviour_logprobs[size:] == view.logprobs[size:]
    assert view.turn_ends == (size - 1, len(view.mask) - 1)
    assert all(view.mask[end] == 1 for end in view.turn_ends)


async def test_the_token_view_refuses_turns_that_do_not_fit_and_may_be_empty(renderer: Renderer) -> None:
    episode, _ = await play(renderer, "call 4", "5")
    first, last = episode.turns
    torn = replace(last, prompt_ids=(0, *last.prompt_ids[1:]))
    with pytest.raises(ValueError, match="the prompt of turn 1 does not begin"):
        TokenView.of(replace(episode, turns=(first, torn)))
    empty, _ = await play(renderer, limits=Limits(max_context_tokens=3))
    view = TokenView.of(empty)
    assert (view.prompt_ids, view.response_ids, view.turn_ends) == ((), (), ())
