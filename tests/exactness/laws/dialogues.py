from __future__ import annotations

import numpy as np

from laws.enumeration import Choose, Tokens, outcomes
from laws.point_mass import chain_of, walk
from laws.policies import Law, Policy, after, finish
from laws.stored_turn import reuse

OBSERVATION = 100  #: added to an observation to make it a token of its own


def observe(choose: Choose, turn: Tokens) -> Tokens:
    # One of two observations, at random.
    chance = np.random.default_rng([7, *turn]).uniform(0.2, 0.8)
    return (OBSERVATION + choose([chance, 1 - chance]),)


def dialogue(choose: Choose, p: Policy, length: int) -> Tokens:
    turn = finish(choose, p, (), length)
    return finish(choose, p, turn + observe(choose, turn), 2 * length + 1)


def two_turn_law(p: Policy, q: Policy, length: int, rule: str) -> Law:
    """Return the joint distribution of a dialogue under ``q`` and one under ``p`` that reuses it.

    ``match``: drafts from the earlier turns, whatever was observed. ``ratio``: the ratio rule verifies the earlier
    turns, the second turn only in the state that it was sampled in. ``elsewhere`` (a fault): as ``ratio``, but the
    second turn is verified with the earlier state's distributions although the observation differs.
    """

    def turn(choose: Choose, stored: Tokens, stored_in: Tokens, state: Tokens) -> Tokens:
        if rule == "match":
            said: Tokens = ()
            while len(said) < length:
                draft = stored[len(said) :] if stored[: len(said)] == said else ()
                here = after(p, state + said)
                said += walk(chain_of(draft), length - len(said), lambda path, here=here: choose(here(path)))
            return said
        if state == stored_in:
            return reuse(choose, after(p, state), after(q, state), stored)
        if rule == "elsewhere":
            return reuse(choose, after(p, stored_in), after(q, stored_in), stored)
        return finish(choose, after(p, state), (), length)

    def run(choose: Choose) -> Tokens:
        earlier = dialogue(choose, q, length)
        first = turn(choose, earlier[:length], (), ())
        state = first + observe(choose, first)
        return earlier + state + turn(choose, earlier[length + 1 :], earlier[: length + 1], state)

    return outcomes(run)
