from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from laws import rule_draws as draws
from laws.claims import LEVEL, Row, enumerated
from laws.dialogues import dialogue, two_turn_law
from laws.enumeration import marginal, outcomes, tv
from laws.point_mass import chain_law, sibling_law, transformed, transformed_tree_law, tree_law
from laws.policies import Law, Policy, near, plain, policy, product
from laws.resume import episode_law, order_law, turn_law
from laws.run_ahead import ahead_dialogue_law, ahead_law
from laws.stored_turn import epochs_law, lenient_formula, picked_law, ratio_law, replay_law, trained_law, two_uses_law
from turntree.spec_tree.rules.transforms import Transforms

TRANSFORMS = Transforms(
    temperature=0.8,
    top_k=3,
    top_p=0.95,
    min_p=0.05,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.4,
)


def point_mass_rows() -> Iterator[Row]:
    def tree(seed: int) -> float:
        found = []
        for vocabulary, length in ((2, 4), (3, 3), (4, 2)):
            p = policy(seed, vocabulary)
            found.append(tv(tree_law(p, length, vocabulary, seed), plain(p, length)))
        return max(found)

    def chain(seed: int, broken: str = "") -> float:
        p = policy(seed, 4)
        drafted = likeliest(near(p, seed), 3)
        return tv(chain_law(p, drafted, broken), plain(p, 3))

    def siblings(seed: int, broken: str = "") -> float:
        p = policy(seed, 3)
        alone = plain(p, 2)
        return tv(sibling_law(p, 2, 2, broken), product(alone, alone))

    def transformed_tree(seed: int, broken: bool = False) -> float:
        return tv(transformed_tree_law(seed, 4, 3, TRANSFORMS, broken), plain(transformed(seed, 3, TRANSFORMS), 4))

    def trained(seed: int, rule: str) -> float:
        p = policy(seed, 4)
        return tv(*trained_law(p(()), near(p, seed)(()), 0.1, rule))

    yield enumerated(
        "sample, then match (tree)", "A", tree, "duplicate siblings", lambda seed: chain(seed, "duplicate")
    )
    yield enumerated(
        "point-mass chain by coins", "A", chain, "drawn from p after a rejection", lambda seed: chain(seed, "resample")
    )
    yield enumerated("point-mass chain by coins", "A", chain, "greedy fallback", lambda seed: chain(seed, "greedy"))
    yield enumerated(
        "tree under all transforms", "A", transformed_tree,
        "path forgotten in the penalties", lambda seed: transformed_tree(seed, True),
    )  # fmt: skip
    yield enumerated(
        "siblings that draft from each other, joint law", "A", siblings,
        "sibling taken as a draw from p (ratio rule)", lambda seed: siblings(seed, "known"),
    )  # fmt: skip
    for rule, name in (("ratio", "ratio rule"), ("replay", "seeded replay")):
        yield enumerated(
            "point-mass draft that the policy was trained on", "A", lambda seed: trained(seed, "point-mass"),
            f"{name}, trained on it (why it is level C)", lambda seed, rule=rule: trained(seed, rule),
            "training moved a tenth of the mass onto it",
        )  # fmt: skip


def likeliest(p: Policy, length: int) -> tuple[int, ...]:
    tokens: tuple[int, ...] = ()
    while len(tokens) < length:
        tokens += (int(p(tokens).argmax()),)
    return tokens


def ratio_rows() -> Iterator[Row]:
    def ratio(seed: int, broken: str = "", top: int | None = None) -> float:
        p = policy(seed, 4)
        return tv(ratio_law(p, near(p, seed), 2, broken=broken, top=top), plain(p, 2))

    def picked(blind: bool) -> float:
        p, q = np.array([0.4, 0.4, 0.2]), np.array([0.5, 0.3, 0.2])
        return tv(picked_law(p, q, (1, 0, 2), blind), single(p))

    def epochs(seed: int, fixed: bool) -> float:
        versions = list(np.random.default_rng(seed).dirichlet(np.ones(4), size=4))
        return tv(epochs_law(versions, fixed), single(versions[-1]))

    def twice(seed: int, stored: int) -> float:
        p = policy(seed, 3)
        alone = plain(p, 2)
        return tv(two_uses_law(p, near(p, seed), 2, stored), product(alone, alone))

    for control, broken in (
        ("SPEC-RL as released: drawn from p after a rejection", "released"),
        ("threshold 0.7 p / q", "threshold"),
        ("stale q", "stale"),
        ("greedy fallback", "greedy"),
    ):
        yield enumerated("ratio with residual", "B", ratio, control, lambda seed, broken=broken: ratio(seed, broken))
    yield enumerated(
        "ratio with residual, top 2 of 4 of q kept", "B", lambda seed: ratio(seed, top=2),
        "the same without residual", lambda seed: ratio(seed, "released", 2),
    )  # fmt: skip
    yield enumerated(
        "ratio, draft chosen blindly", "B", lambda seed: picked(True),
        "picked for its reward", lambda seed: picked(False), "(.36, .60, .04) for (.4, .4, .2)",
    )  # fmt: skip
    yield enumerated(
        "ratio over three epochs, fresh coins", "B", lambda seed: epochs(seed, False),
        "the same coin each epoch", lambda seed: epochs(seed, True),
    )  # fmt: skip
    yield enumerated(
        "ratio, two turns from two stored ones, joint law", "B", lambda seed: twice(seed, 2),
        "one stored turn used twice", lambda seed: twice(seed, 1),
    )  # fmt: skip


def single(p: np.ndarray) -> Law:
    return {(token,): float(weight) for token, weight in enumerate(p)}


def lenience_rows() -> Iterator[Row]:
    def distance(seed: int, biased: bool) -> float:
        p = policy(seed, 4)
        q = near(p, seed)
        emitted = ratio_law(p, q, 2, lenience=float(np.exp(0.5)))
        return tv(emitted, plain(p, 2) if biased else lenient_formula(p, q, 2, float(np.exp(0.5))))

    yield enumerated(
        "lenience e^0.5 against its behaviour law", "D", lambda seed: distance(seed, False),
        "against the policy", lambda seed: distance(seed, True),
    )  # fmt: skip


def replay_rows() -> Iterator[Row]:
    def replayed(seed: int, against_old: bool) -> float:
        p = policy(seed, 4)
        q = near(p, seed)
        law = marginal(replay_law(p, q, 2), lambda both: both[2:])
        return tv(law, plain(q if against_old else p, 2))

    yield enumerated(
        "seeded replay", "B", lambda seed: replayed(seed, False),
        "against the policy that drew the stored turn", lambda seed: replayed(seed, True),
    )  # fmt: skip


def two_turn_rows() -> Iterator[Row]:
    def distance(seed: int, rule: str) -> float:
        p = policy(seed, 2)
        q = near(p, seed)
        then, now = (outcomes(lambda choose, one=one: dialogue(choose, one, 2)) for one in (q, p))
        both = two_turn_law(p, q, 2, rule)
        return tv(both, product(then, now)) if rule == "match" else tv(marginal(both, lambda one: one[5:]), now)

    yield enumerated(
        "two turns, drafts from an earlier dialogue, joint law", "A", lambda seed: distance(seed, "match"),
        "verified in the earlier dialogue's state", lambda seed: distance(seed, "elsewhere"),
    )  # fmt: skip
    yield enumerated(
        "two turns, ratio where the observation is reproduced", "B", lambda seed: distance(seed, "ratio"),
        "also where it is not", lambda seed: distance(seed, "elsewhere"),
    )  # fmt: skip


def run_ahead_rows() -> Iterator[Row]:
    def distance(seed: int, broken: str) -> float:
        return tv(*ahead_law(policy(seed, 3), 2, broken))

    for control, broken in (
        ("noise that the policy was trained on", "trained"), ("fresh noise after a mismatch", "anew"),
        ("turns thrown away for what they say", "picked"),
    ):  # fmt: skip
        yield enumerated(
            "run-ahead promoted, joint law with what was trained on", "B", lambda seed: distance(seed, ""),
            control, lambda seed, broken=broken: distance(seed, broken),
        )  # fmt: skip
    yield enumerated(
        "run-ahead of two turns, another observation", "B", lambda seed: tv(*ahead_dialogue_law(policy(seed, 2))),
        "verified again in the state that it was made in",
        lambda seed: tv(*ahead_dialogue_law(policy(seed, 2), "elsewhere")),
    )  # fmt: skip


def resume_rows() -> Iterator[Row]:
    @cache
    def turn(seed: int, broken: str = "") -> float:
        moments = [(1,)] if broken else [(0,), (1,), (2,), (1, 2), (1, 3)]
        return max(tv(*turn_law(policy(seed, 3), 2, some, broken)) for some in moments)

    @cache
    def episode(seed: int, broken: str = "") -> float:
        moments = [(3,)] if broken else [(0,), (1,), (2,), (3,), (4,), *([(1, 3), (3, 4)] if seed == 3 else [])]
        return max(tv(*episode_law(policy(seed, 2), some, broken)) for some in moments)

    trained, anew, keep = (
        ("noise that the policy was trained on", "trained"),
        ("fresh noise behind the first token not kept", "anew"),
        ("tokens kept without a look", "keep"),
    )
    for control, broken in (keep, anew, trained):
        yield enumerated(
            "turn that an update interrupts at any moment, joint law with what was trained on", "B", turn,
            control, lambda seed, broken=broken: turn(seed, broken),
        )  # fmt: skip
    for control, broken in (keep, anew, trained, ("finished turns not verified again", "unjudged")):
        yield enumerated(
            "episode that an update interrupts at any moment, also after its end", "B", episode,
            control, lambda seed, broken=broken: episode(seed, broken),
        )  # fmt: skip
    yield enumerated(
        "two steps of a training, the later row begun before the update", "B",
        lambda seed: tv(*order_law(policy(seed, 3))),
        "trained on first what ends first", lambda seed: tv(*order_law(policy(seed, 3), "finished")),
    )  # fmt: skip


def drawn_rows(count: int) -> Iterator[Row]:
    seeds = np.arange(count)
    p = draws.table(0, 3, 4)
    q = draws.drifted(p, 1)
    stored = draws.plain(q, seeds)
    cells = p.cells
    power = draws.power(count, len(cells), 0.01, LEVEL)
    note = f"{count:,} draws; power at TV .01: {power:.4f}"
    for rule, level, exact, control, broken in (
        (
            "point-mass chain", "A", draws.point_mass(p, seeds),
            "drawn from p after a rejection", draws.point_mass(p, seeds, resample=True),
        ),
        (
            "ratio with residual", "B", draws.ratio(p, q, seeds),
            "SPEC-RL as released", draws.ratio(p, q, seeds, released=True),
        ),
        (
            "seeded replay", "B", draws.replay(p, stored, seeds),
            "noise keyed by the step", draws.replay(p, stored, seeds, keyed_by_step=True),
        ),
    ):  # fmt: skip
        fit, misfit = draws.chi_square(exact, cells), draws.chi_square(broken, cells)
        yield Row(
            rule=rule, level=level, statistic="p", value=fit.p_value, control=control, control_value=misfit.p_value,
            holds=fit.p_value > LEVEL > misfit.p_value and power > 0.99, note=note,
        )  # fmt: skip
    decoded = draws.plain(p, seeds)
    differing = [
        int((draws.replay(p, stored, seeds, keyed_by_step=keyed) != decoded).any(1).sum()) for keyed in (False, True)
    ]
    yield Row(
        rule="seeded replay against plain decoding", level="B", statistic="differing", value=differing[0],
        control="noise keyed by the step", control_value=differing[1],
        holds=differing[0] == 0 < differing[1], note=f"of {count:,} turns",
    )  # fmt: skip
    watched = draws.scores(p, q, draws.ratio(p, q, seeds))
    released = draws.scores(p, q, draws.ratio(p, q, seeds, released=True))
    for name, value, broken_value in (
        ("entropy", watched.entropy, released.entropy),
        ("tokens with p > q", watched.grew, released.grew),
    ):
        yield Row(
            rule=f"monitor: {name}", level="B", statistic="z", value=value, control="SPEC-RL as released",
            control_value=broken_value, holds=abs(value) < 4 < abs(broken_value), note=f"{count:,} turns",
        )  # fmt: skip
