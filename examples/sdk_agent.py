"""An agent with two tools, written with OpenAI's agents SDK: pip install openai-agents.

It knows nothing of turntree: it asks whatever policy answers at `base_url`. `train_sdk_agent.py` trains that policy.
"""

import re

from openai import AsyncOpenAI

from agents import Agent, AgentsException, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)
TURNS = 6


@function_tool
def calculator(expression: str) -> str:
    """Compute a sum or a difference of two numbers, for example 3+4."""
    return operate(expression, "+-")


@function_tool
def multiply(expression: str) -> str:
    """Compute a product of two numbers, for example 3*4."""
    return operate(expression, "*")


def operate(expression: str, known: str) -> str:
    found = re.fullmatch(r"\s*(\d+)\s*([-+*])\s*(\d+)\s*", expression)
    if found is None or found[2] not in known:
        return "."
    left, right = int(found[1]), int(found[3])
    return str({"+": left + right, "-": left - right, "*": left * right}[found[2]])


async def solve(prompt: str, base_url: str, api_key: str, model: str) -> str:
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        policy = OpenAIChatCompletionsModel(model=model, openai_client=client)
        agent = Agent(name="arithmetic", model=policy, tools=[calculator, multiply])
        try:
            done = await Runner.run(agent, prompt, max_turns=TURNS)
        except AgentsException:  # the policy's own fault: no such tool, no end of calls. An answer, if a wrong one
            return ""
    return str(done.final_output)
