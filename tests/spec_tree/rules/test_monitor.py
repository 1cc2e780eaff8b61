import numpy as np
import pytest
from scipy import stats

from turntree.spec_tree.rules.monitor import MonitorSums, surprise
from turntree.spec_tree.rules.noise import uniform
from turntree.spec_tree.rules.verify import point_mass_accept, ratio_accept, residual, without

ROLLOUTS, TOKENS, VOCABULARY = 400, 250, 12
RNG = np.random.default_rng(5)
P = RNG.dirichlet(np.full(VOCABULARY, 0.6), size=TOKENS)  #: the current policy


def power(distributions, exponent):
    raised = distributions**exponent
    return raised / raised.sum(-1, keepdims=True)


Q = power(P * np.exp(RNG.normal(0, 0.2, P.shape)), 1.5)  #: the more confident policy that drew the stored turn
POSITIONS = np.arange(ROLLOUTS)[:, None], np.arange(TOKENS)
ROW = np.arange(TOKENS)


def drawn(distributions, seed):
    """Draw tokens by inverting the cumulative distribution, shape (ROLLOUTS, TOKENS)."""
    below = np.cumsum(distributions, -1)
    coins = uniform(POSITIONS[0] + 10_000 * seed, POSITIONS[1]) * below[..., -1]
    return (coins[..., None] >= below).sum(-1)


def point_mass(after_rejection):
    """Return emitted and drafted tokens if the likeliest token of ``Q`` is drafted everywhere."""
    drafted = np.broadcast_to(Q.argmax(-1), (ROLLOUTS, TOKENS))
    stays = point_mass_accept(P[ROW, drafted], uniform(POSITIONS[0], POSITIONS[1]))
    return np.where(stays, drafted, drawn(after_rejection(drafted), 1)), drafted


def ratio_rule(exact, q=Q):
    """Verify a stored turn by the ratio rule; not ``exact``: draw the rejected position from the policy itself."""
    stored = drawn(q, 2)
    stays = ratio_accept(P[ROW, stored], q[ROW, stored], uniform(POSITIONS[0], POSITIONS[1]))
    return np.where(stays, stored, drawn(residual(P, q) if exact else P, 1))


def sums(emitted, drafted=None, members=None):
    """Return one MonitorSums per rollout; hits are drafted tokens or ``members``, shape (TOKENS, VOCABULARY)."""
    entropy, variance = surprise(P)
    nats = -np.log(P[ROW, emitted])
    if drafted is None:
        members = np.zeros(P.shape, bool) if members is None else members
        chance = np.broadcast_to((P * members).sum(-1), emitted.shape)
        hits = members[ROW, emitted]
    else:
        chance, hits = P[ROW, drafted], emitted == drafted
    return [
        MonitorSums(
            accepted=float(hits[i].sum()),
            expected=float(chance[i].sum()),
            variance=float((chance[i] * (1 - chance[i])).sum()),
            surprise=float(nats[i].sum()),
            entropy=float(entropy.sum()),
            entropy_variance=float(variance.sum()),
        )
        for i in range(ROLLOUTS)
    ]


def is_standard_normal(values):
    return stats.kstest(values, "norm").pvalue > 1e-3 and abs(np.mean(values)) < 4 / np.sqrt(len(values))


@pytest.fixture(scope="module")
def exact():
    return sums(*point_mass(lambda drafted: without(np.broadcast_to(P, (ROLLOUTS, *P.shape)), drafted)))


def test_surprise_leaves_impossible_tokens_out_and_where_chance_has_no_part_there_is_no_score():
    entropy, variance = surprise(np.array([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]]))
    mean = 0.25 * np.log(4) + 0.75 * np.log(4 / 3)
    assert entropy == pytest.approx([mean, 0])
    assert variance == pytest.approx([0.25 * np.log(4) ** 2 + 0.75 * np.log(4 / 3) ** 2 - mean**2, 0])
    assert MonitorSums().acceptance_z is None
    assert MonitorSums(surprise=0.0, entropy=0.0).entropy_z is None


def test_exact_rollouts_give_standard_normal_scores_and_their_sums_add_up(exact):
    assert is_standard_normal([one.acceptance_z for one in exact])
    assert is_standard_normal([one.entropy_z for one in exact])
    total = sum(exact, MonitorSums())
    assert total.surprise == pytest.approx(sum(one.surprise for one in exact))
    assert total.variance == pytest.approx(sum(one.variance for one in exact))
    assert abs(total.acceptance_z or 9) < 4
    assert abs(total.entropy_z or 9) < 4


def test_the_ratio_rule_with_its_residual_scores_normally_and_drawing_from_the_policy_again_shows():
    assert is_standard_normal([one.entropy_z for one in sums(ratio_rule(exact=True))])
    assert np.mean([one.acceptance_z for one in sums(*point_mass(lambda drafted: P))]) > 4.5


def step_scores(all_sums, name):
    return [getattr(sum(all_sums[i : i + 16], MonitorSums()), name) for i in range(0, ROLLOUTS, 16)]


@pytest.mark.parametrize(("exponent", "sign"), [(1.5, -1), (0.5, 1)])
def test_spec_rls_released_rule_shows_in_the_entropy_of_every_step(exponent, sign):
    # Without the residual, tokens stay too near the old policy.
    q = power(P, exponent)
    assert min(sign * z for z in step_scores(sums(ratio_rule(exact=False, q=q)), "entropy_z")) > 4
    assert max(abs(z) for z in step_scores(sums(ratio_rule(exact=True, q=q)), "entropy_z")) < 4


def test_the_tokens_that_grew_show_the_released_rule_whatever_the_drift():
    # Entropy does not see a drift that is unrelated to likelihood; the set p > q does.
    q = power(P * np.exp(RNG.normal(0, 0.5, P.shape)), 1.0)
    grew = q < P
    broken, kept = (sums(ratio_rule(exact, q), members=grew) for exact in (False, True))
    assert abs(np.mean(step_scores(broken, "entropy_z"))) < 2
    assert max(step_scores(broken, "acceptance_z")) < -4
    assert max(abs(z) for z in step_scores(kept, "acceptance_z")) < 4
