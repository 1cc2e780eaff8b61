"""The exact joint distribution of a step's rollout, the policy that learns from it, and the next rollout.

The policy of the next step depends on the running step's rollout. The next rollout was precomputed by the current
policy with noise of its own and is replayed with this noise. The claim: given the running step's rollout, the next
rollout follows its policy. ``broken`` names a fault: the control.
"""

from __future__ import annotations

from laws.dialogues import observe
from laws.enumeration import Choose, Tokens, outcomes, race_joint
from laws.point_mass import chain_of, walk
from laws.policies import Law, Policy, after, finish
from laws.stored_turn import trained

GAIN = 0.5  #: how far a rollout moves the policy towards its own tokens


def learnt(p: Policy, said: Tokens) -> Policy:
    """Return ``p`` after training on a rollout: at every context it favours a token of the rollout."""
    return lambda context: trained(p(context), said[len(context) % len(said)], GAIN)


def replayed(choose: Choose, p: Policy, new: Policy, length: int, made: Tokens | None = None) -> tuple[Tokens, Tokens]:
    """Return turns by ``p`` and by ``new`` with the same clocks; ``made`` is the turn by ``p``, if known."""
    old: Tokens = ()
    now: Tokens = ()
    for position in range(length):
        joint = race_joint(p(old), new(now))
        if made is None:
            pair = choose(joint.ravel())
            old, now = (*old, pair // joint.shape[1]), (*now, pair % joint.shape[1])
        else:
            row = joint[made[position]]
            old, now = (*old, made[position]), (*now, choose(row / row.sum()))
    said = walk(chain_of(old), length, lambda path: now[len(path)])
    if said != now[: len(said)]:
        raise AssertionError(f"replay says {said}, plain decoding {now}")
    return old, now


def ahead_law(p: Policy, length: int, broken: str = "") -> tuple[Law, Law]:
    """Return the joint distribution of the running step's turn and the next one, and the claimed one.

    Faults: ``trained`` gives the precomputed turn the noise of the running step's turn, ``anew`` draws fresh noise
    where the replay leaves the precomputed turn, and ``picked`` discards turns that begin with token 0 and draws again.
    """

    def run(choose: Choose) -> Tokens:
        shown = finish(choose, p, (), length)
        new = learnt(p, shown)
        made, now = replayed(choose, p, new, length, shown if broken == "trained" else None)
        if broken == "anew":
            kept = next((position for position in range(length) if made[position] != now[position]), length)
            now = finish(choose, new, now[:kept], length)
        if broken == "picked" and made[0] == 0:
            now = finish(choose, new, (), length)
        return shown + now

    def claimed(choose: Choose) -> Tokens:
        shown = finish(choose, p, (), length)
        return shown + finish(choose, learnt(p, shown), (), length)

    return outcomes(run), outcomes(claimed)


def ahead_dialogue_law(p: Policy, broken: str = "") -> tuple[Law, Law]:
    """Return these distributions for dialogues of two turns (one and two tokens) with an observation.

    The precomputed second turn is a draft only in the state that it was computed in; its noise is used for the second
    turn in any state. ``elsewhere`` (a fault): it is verified in the state that it was computed in.
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
