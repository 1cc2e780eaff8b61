import asyncio
from itertools import pairwise

import numpy as np
import pytest
import stored_turns
from laws import enumeration, policies
from tabled_engine import TabledEngine

from turntree.agents.engines.protocol import Sampling
from turntree.agents.turn_drafts import turn_verification
from turntree.agents.turn_drafts.turn_verification import RatioRule, verify
from turntree.spec_tree.rules.level import Level
from turntree.spec_tree.rules.verify import prefix, ratio_accept

LENGTH, TOP, VOCABULARY = 2, 2, 5
EXACT, NOTICED = 1e-6, 0.01  # recorded distributions are float32


def stored_turn(old, tokens):
    ids = np.argsort(-old, axis=1, kind="stable")[:, :TOP]
    with np.errstate(divide="ignore"):
        kept = np.log(np.take_along_axis(old, ids, 1)).astype(np.float32)
        own = np.log(old[np.arange(len(tokens)), tokens]).astype(np.float32)
    return stored_turns.stored_turn(tokens, own, ids, kept, token_limit=LENGTH)


def toss(choose, *thresholds):
    # A coin from the middle of one of the parts into which ``thresholds`` divide (0, 1).
    edges = np.unique(np.clip([0.0, *np.concatenate([np.atleast_1d(t) for t in thresholds]), 1.0], 0, 1))
    parts = list(pairwise(edges.tolist()))
    low, high = parts[choose([high - low for low, high in parts])]
    return (low + high) / 2


def redraw_coins(choose, p, q):
    # First among p's known tokens and its unknown mass, then in the whole residual distribution.
    order = np.argsort(-p, kind="stable")
    rest = np.maximum(p - q, 0.0)[order]
    total = rest[:TOP].sum() + 1 - p[order[:TOP]].sum()
    return toss(choose, rest.cumsum() / total), toss(choose, rest.cumsum() / rest.sum())


def assembled(enumeration, policies, monkeypatch, p, q, *, same_coin):
    engine = TabledEngine(p)
    with asyncio.Runner() as runner:

        def run(choose):
            stored = policies.finish(choose, q, (), LENGTH)
            at, tokens = np.arange(LENGTH), np.array(stored)
            old, new = policies.along(q, stored, LENGTH), policies.along(p, stored, LENGTH)
            turn = stored_turn(old, stored)
            old = np.where(np.argsort(np.argsort(-old, axis=1, kind="stable"), axis=1) < TOP, old, 0.0)
            coins = np.full(LENGTH + 2, 0.5)
            for position in range(LENGTH):
                ratio = new[position, stored[position]] / max(old[position, stored[position]], 1e-300)
                coins[position] = toss(choose, ratio if old[position, stored[position]] else 0.0)
                if coins[position] > ratio:
                    break
            kept = int(prefix(ratio_accept(new[at, tokens], old[at, tokens], coins[:LENGTH])))
            if kept < LENGTH:
                coins[LENGTH:] = redraw_coins(choose, new[kept], old[kept])
            if same_coin:
                coins[LENGTH + 1] = coins[LENGTH]
            monkeypatch.setattr(
                turn_verification, "uniform", lambda seed, positions: coins[np.minimum(positions, len(coins) - 1)]
            )
            rule = RatioRule(top=TOP, vocabulary=VOCABULARY, lenience=1.0, seed=0)
            verified = runner.run(verify(engine, (), turn, stored, Sampling(), rule, Level.B))
            return policies.finish(choose, p, verified.head.token_ids, LENGTH)

        return enumeration.outcomes(run)


@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.release) for seed in (2, 4))])
@pytest.mark.parametrize("same_coin", [False, True])
def test_whole_turns_have_the_policys_law_and_would_not_if_one_coin_redrew_twice(monkeypatch, seed, same_coin):
    p = policies.policy(seed, VOCABULARY)
    q = policies.near(p, seed)
    law = assembled(enumeration, policies, monkeypatch, p, q, same_coin=same_coin)
    distance = enumeration.tv(law, policies.plain(p, LENGTH))
    assert (distance > NOTICED) if same_coin else (distance < EXACT)
