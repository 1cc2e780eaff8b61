"""The exact joint distribution of a step's rollout, the policy that learns from it, and the next rollout, made ahead.

The policy of the next step depends on the running step's rollout; the rollout made ahead was drawn by the policy of
now with noise of its own and is replayed with it. Claimed is that, whatever the running step said, the next rollout
is what its policy says. ``broken`` names a fault: the control.
"""

from __future__ import annotations

from laws.dialogues import observe
from laws.enumeration import Choose, Tokens, outcomes, race_joint
from laws.point_mass import chain_of, walk
from laws.policies import Law, Policy, after, finish
from laws.stored_turn import trained

GAIN = 0.5
"""How far a rollout moves the policy towards its own tokens."""


def learnt(p: Policy, said: Tokens) -> Policy:
    """``p`` after training on a rollout: at every context it leans towards a token of the rollout."""
    return lambda context: trained(p(context), said[len(context) % len(said)], GAIN)


def replayed(choose: Choose, p: Policy, new: Policy, length: int, made: Tokens | None = None) -> tuple[Tokens, Tokens]:
    """A turn by ``p`` and by ``new`` with the same clocks; ``made``: what ``p`` said with them, if it is known."""
    old: Tokens = ()
    now: Tokens = ()
    for place in range(length):
        joint = race_joint(p(old), new(now))
        if made is None:
            pair = choose(joint.ravel())
            old, now = (*old, pair // joint.shape[1]), (*now, pair % joint.shape[1])
        else:
            row = joint[made[place]]
            old, now = (*old, made[place]), (*now, choose(row / row.sum()))
    said = walk(chain_of(old), length, lambda path: now[len(path)])
    if said != now[: len(said)]:
        raise AssertionError(f"replay says {said}, plain decoding {now}")
    return old, now


def ahead_law(p: Policy, length: int, broken: str = "") -> tuple[Law, Law]:
    """Joint distribution of the running step's turn and the next one's, and what it has to be.

    ``trained``: the turn made ahead has the noise of the running step's. ``anew``: where the replay leaves what was
    made, fresh noise draws the token. ``picked``: turns that begin with token 0 are thrown away and drawn anew.
    """

    def run(choose: Choose) -> Tokens:
        shown = finish(choose, p, (), length)
        new = learnt(p, shown)
        made, now = replayed(choose, p, new, length, shown if broken == "trained" else None)
        if broken == "anew":
            kept = next((place for place in range(length) if made[place] != now[place]), length)
            now = finish(choose, new, now[:kept], length)
        if broken == "picked" and made[0] == 0:
            now = finish(choose, new, (), length)
        return shown + now

    def claimed(choose: Choose) -> Tokens:
        shown = finish(choose, p, (), length)
        return shown + finish(choose, learnt(p, shown), (), length)

    return outcomes(run), outcomes(claimed)


def ahead_dialogue_law(p: Policy, broken: str = "") -> tuple[Law, Law]:
    """The same of a dialogue of two turns of one token and two, with a random observation between.

    The second turn that was made ahead is a draft only in the very state that it was made in; its noise is used for
    the second turn in any. ``elsewhere``: what was made is verified in the state that it was made in.
    """

    def run(choose: Choose) -> Tokens:
        shown = finish(choose, p, (), 2)
        new = learnt(p, shown)
        made, first = replayed(choose, p, new, 1)
        there, here = made + observe(choose, made), first + observe(choose, first)
        reverified = there if broken == "elsewhere" else here
        _, second = replayed(choose, after(p, there), after(new, reverified), 2)
        return shown + here + second

    def claimed(choose: Choose) -> Tokens:
        shown = finish(choose, p, (), 2)
        new = learnt(p, shown)
        first = finish(choose, new, (), 1)
        state = first + observe(choose, first)
        return shown + finish(choose, new, state, 4)

    return outcomes(run), outcomes(claimed)
