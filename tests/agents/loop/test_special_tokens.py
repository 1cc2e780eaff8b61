from chat_tokenizers import CHATML, make_tokenizer

from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.envs import make
from turntree.envs.limits import Limits

MARKS = ["<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>"]


async def outcome(tool_format: str) -> tuple[str, float]:
    tokenizer = make_tokenizer(CHATML, special=["<|im_start|>", "<|im_end|>", *MARKS], eos="<|im_end|>")
    env = make("turntree/Arithmetic-v0", tool_format=tool_format)
    task = env.unwrapped.task(0)
    call = '<|channel|>commentary to=functions.calculator <|constrain|>json<|message|>{"expression": "6*7"}<|call|>'
    answer = f"<|channel|>analysis<|message|>it is done<|end|><|channel|>final<|message|>#### {task.answer}<|return|>"
    engine = ScriptedEngine([call, answer], tokenizer)
    limits = Limits(max_turn_tokens=200)
    episode = await rollout(env, engine, Renderer(tokenizer), limits, task=task)
    heard = episode.turns[0].observation
    return heard[0].content if heard else "", episode.reward


async def test_special_tokens_are_kept_for_a_format_that_is_made_of_them() -> None:
    """Control: parsed in a plain-text format, the same turns call nothing."""
    heard, reward = await outcome("harmony")
    assert (heard, reward > 0) == ("42", True)
    assert "42" not in (await outcome("hermes"))[0]
