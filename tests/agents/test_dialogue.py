from __future__ import annotations

from dataclasses import replace

from adder import play

from turntree.agents.dialogue import dialogue_states
from turntree.envs.message import Message, Role


async def test_recorded_states_are_those_that_the_loop_gave_to_the_engine(renderer):
    episode, engine = await play(renderer, "call 1", "call 2", "5")
    assert dialogue_states(episode) == [state for _, _, state in engine.asked]
    assert len({state.tools for state in dialogue_states(episode)}) == 3, "the tool history must tell them apart"
    # Assistant messages before the first turn are no turns.
    shot = Message(role=Role.ASSISTANT, content="an example")
    shown = replace(episode, messages=(shot, *episode.messages))
    assert dialogue_states(shown) == dialogue_states(episode)
