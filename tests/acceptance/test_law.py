"""The exact law of one round, and of several: the proof that the rules are lossless.

Every number here is the law of the compiled float32 kernels over all values
of their uniforms, so the tolerance covers float32 rounding and nothing else.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.acceptance import Block, Rejection
from specjax.acceptance.chain import Coins
from specjax.request import make_request
from specjax.testing import controls
from specjax.testing.law import draw_law, enumerate_drafts, joint_law, outcomes, random_law, round_law
from specjax.testing.rounds import rounds_law
from specjax.types import Proposal

TOLERANCE = 1e-6
TABLES, V = 25, 3
LOSSLESS = [Rejection(), Block()]


def tables(gamma, count=TABLES):
    """``count`` random (p, q); every second pair with zeros, in places of their own."""
    rng = np.random.default_rng(gamma)
    for index in range(count):
        zeros = 0.3 if index % 2 else 0.0
        yield index, random_law(rng, V, gamma + 1, zeros), random_law(rng, V, gamma, zeros)


def worst_error(rule, gamma, count=12, **faults):
    """Largest error of the joint law of gamma + 1 tokens over the tables."""
    errors = []
    for _, p, q in tables(gamma, count):
        settings = {name: fault(p, q) for name, fault in faults.items()}
        drafts = enumerate_drafts(rule, p, settings.pop("q", q), **settings)
        errors.append(np.abs(round_law(rule, p, drafts) - joint_law(p)).max())
    return max(errors)


@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: type(rule).__name__)
def test_output_law_is_the_targets(rule, gamma, one_hot):
    """25 tables a gamma; the number drafted runs through 0..gamma."""
    for index, p, q in tables(gamma):
        drafts = enumerate_drafts(
            rule, p, q, one_hot=one_hot, num_drafted=lambda _: (gamma - index) % (gamma + 1)
        )
        assert np.abs(round_law(rule, p, drafts) - joint_law(p)).max() <= TOLERANCE


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: type(rule).__name__)
def test_one_hot_is_lossless_whatever_was_drafted(rule):
    """Not only on average over drafts: for each single one (a wrong argmax, a copy, a guess)."""
    _, p, q = next(tables(2))
    drafts = enumerate_drafts(rule, p, q, one_hot=True)
    as_array = dataclasses.replace(drafts, probs=np.eye(V, dtype=np.float32)[drafts.tokens])
    for row in range(len(drafts.tokens)):
        alone = np.eye(len(drafts.tokens))[row]
        law = round_law(rule, p, dataclasses.replace(drafts, weights=alone))
        assert np.abs(law - joint_law(p)).max() <= TOLERANCE
        np.testing.assert_allclose(
            round_law(rule, p, dataclasses.replace(as_array, weights=alone)), law, atol=TOLERANCE
        )


def test_coins_predict_every_verdict():
    """The method itself: thresholds and laws found by bisection say what random uniforms will do."""
    rng = np.random.default_rng(7)
    p, q = random_law(rng, V, 3), random_law(rng, V, 2)
    for rule in LOSSLESS:
        drafts = enumerate_drafts(rule, p, q)
        num_accepted, cells, laws = outcomes(rule, drafts)
        judge = jax.jit(jax.vmap(rule.accept, in_axes=(0, None, None)))
        for row, draft in enumerate(drafts.tokens):
            proposal = Proposal(tokens=draft, probs=drafts.probs[row], num_drafted=jnp.int32(2))
            uniforms = rng.random((2000, 3), np.float32)
            verdict = judge(
                Coins(accept=uniforms[:, :2], final=uniforms[:, 2]), proposal, drafts.target_probs[row]
            )
            expected = np.zeros((3, V))
            for n, cell, law in zip(num_accepted[row], cells[row], laws[row]):
                expected[n] += cell * law
            seen = np.zeros((3, V))
            np.add.at(seen, (np.asarray(verdict.num_accepted), np.asarray(verdict.next_token)), 1 / 2000)
            assert np.abs(seen - expected).max() < 0.06  # five standard deviations of the largest entry


@pytest.mark.parametrize(
    ("rule", "gamma", "least"),
    [
        (controls.ResampleTarget(), 2, 0.1),
        (controls.SoftmaxResidual(), 2, 0.15),
        (controls.CutToBatch(others_accepted=0), 2, 0.1),
        (controls.CutToBatch(others_accepted=1), 2, 0.02),
        (controls.BlockPlainResidual(), 2, 0.005),
        (controls.BlockFirstFailure(), 2, 0.1),
        (Rejection(lenience=0.5), 2, 0.1),
    ],
    ids=str,
)
def test_lossy_rules_are_caught(rule, gamma, least):
    """At least ``least``, thousands of times the tolerance."""
    assert not rule.lossless
    assert worst_error(rule, gamma) > least


def top2(law):
    """Each row's two likeliest tokens, renormalised."""
    keep = [np.argsort(np.argsort(-x, axis=-1), axis=-1) < 2 for x in law]
    kept = [np.where(mask, x, 0) for mask, x in zip(keep, law)]
    return [x / x.sum(-1, keepdims=True) for x in kept]


def argmax(law):
    return [np.eye(V)[x.argmax(-1)] for x in law]


def drop_unsure(q):
    """Submits tokens up to the first one drafted with less than 0.4: decided by the token itself."""
    sure = lambda draft, i: q[i][draft[: i + 1]] >= 0.4
    return lambda draft: next((i for i in range(len(draft)) if not sure(draft, i)), len(draft))


def drop_after_unsure(q):
    """Submits one token more: decided by tokens that stay in."""
    return lambda draft: min(drop_unsure(q)(draft) + 1, len(draft))


FAULTY_DRAFTERS = {
    "filtered draft, raw q": ({"q": lambda p, q: top2(q), "reported": lambda p, q: q}, 0.09),
    "argmax draft, softmax q": ({"q": lambda p, q: argmax(q), "reported": lambda p, q: q}, 0.15),
    "unsure token dropped": ({"num_drafted": lambda p, q: drop_unsure(q)}, 0.1),
}


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("fault", FAULTY_DRAFTERS)
def test_lossy_drafters_are_caught(rule, fault):
    faults, least = FAULTY_DRAFTERS[fault]
    assert worst_error(rule, 2, **faults) > least


HONEST_DRAFTERS = {
    "filtered draft, filtered q": {"q": lambda p, q: top2(q)},
    "argmax draft, one-hot q": {"q": lambda p, q: argmax(q), "one_hot": lambda p, q: True},
    "stops after an unsure token": {"num_drafted": lambda p, q: drop_after_unsure(q)},
    "drafts what the target finds unlikely": {"q": lambda p, q: [x[..., ::-1] for x in p[:-1]]},
}


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("drafter", HONEST_DRAFTERS)
def test_their_honest_twins_pass(rule, drafter):
    """The same drafters with the right q: the tests above catch the fault and not the drafter."""
    assert worst_error(rule, 2, count=8, **HONEST_DRAFTERS[drafter]) <= TOLERANCE


def test_position_keys_are_lossy_for_block_verification():
    """Over several rounds, 3 tokens: error 0.065 with noise by position, none with noise by round."""
    p, q = np.array([0.3, 0.7]), np.array([0.7, 0.3])
    target = np.einsum("a,b,c->abc", p, p, p)
    error = lambda rule, by_position: np.abs(
        rounds_law(rule, p, q, gamma=2, length=3, by_position=by_position) - target
    ).max()
    assert error(Block(), False) <= TOLERANCE
    assert error(Block(), True) == pytest.approx(0.065, abs=0.001)
    # The token rule survives them: what it uses again it has not looked at.
    assert error(Rejection(), True) <= TOLERANCE


def one_token(p, q, rule, **settings):
    """The law [V] of the first token for rows p and q at gamma 1."""
    laws = [np.array(p), np.broadcast_to(p, (len(p), len(p)))]
    return round_law(rule, laws, enumerate_drafts(rule, laws, [np.array(q)], **settings)).sum(axis=1)


def test_q_before_its_filter():
    """top_k = 2 on both sides; a drafter that reports the raw q emits [.75, .25, 0, 0]."""
    raw_p, raw_q = [0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]
    row = jax.tree.map(
        lambda x: x[0],
        make_request(prompt_length=[1], max_new_tokens=1, seed=0, temperature=1.0, top_k=2).sampling,
    )
    p, q = np.asarray(sampling.warp(jnp.log(jnp.array([raw_p, raw_q])), row), np.float64)
    rule = Rejection()
    np.testing.assert_allclose(one_token(p, q, rule), [0.625, 0.375, 0, 0], atol=TOLERANCE)
    faulty = one_token(p, q, rule, reported=[np.array(raw_q)])
    np.testing.assert_allclose(faulty, [0.75, 0.25, 0, 0], atol=TOLERANCE)


P, Q = [0.3, 0.5, 0.2], [0.6, 0.3, 0.1]


def test_argmax_draft_needs_a_one_hot_q():
    rule, first = Rejection(), [1.0, 0.0, 0.0]
    np.testing.assert_allclose(
        one_token(P, first, rule, reported=[np.array(Q)]), [0.5, 1 / 3, 1 / 6], atol=TOLERANCE
    )
    np.testing.assert_allclose(one_token(P, first, rule, one_hot=True), P, atol=TOLERANCE)
    greedy = [0.0, 1.0, 0.0]
    np.testing.assert_allclose(one_token(greedy, first, rule, one_hot=True), greedy, atol=0)


def test_residual_is_divided_by_its_sum():
    drafts = enumerate_drafts(Rejection(), [np.array(P), np.tile(P, (3, 1))], [np.array(Q)])
    num_accepted, _, laws = outcomes(Rejection(), drafts)
    assert drafts.tokens[0, 0] == 0 and num_accepted[0, 1] == 0
    np.testing.assert_allclose(laws[0, 1], [0, 2 / 3, 1 / 3], atol=TOLERANCE)
    np.testing.assert_allclose(one_token(P, Q, controls.SoftmaxResidual()), [0.390, 0.410, 0.200], atol=5e-4)


def test_residual_uses_the_rows_of_the_rejection():
    """Rejected at index 1 of 3, the next token follows norm(relu(p[1] - q[1]))."""
    rng = np.random.default_rng(3)
    p, q = random_law(rng, V, 4), random_law(rng, V, 3)
    drafts = enumerate_drafts(Rejection(), p, q)
    num_accepted, cells, laws = outcomes(Rejection(), drafts)
    for row, cell in itertools.product(range(len(drafts.tokens)), range(8)):
        if num_accepted[row, cell] == 1 and cells[row, cell] > 0:
            residual = np.maximum(p[1] - q[1], 0)[drafts.tokens[row, 0]]
            np.testing.assert_allclose(laws[row, cell], residual / residual.sum(), atol=1e-5)


def expected_accepted(rule, p, q, **settings):
    drafts = enumerate_drafts(rule, p, q, **settings)
    num_accepted, cells, _ = outcomes(rule, drafts)
    return np.array([drafts.weights @ ((num_accepted >= i) * cells).sum(1) for i in range(1, len(q) + 1)])


def test_acceptance_rates():
    """Which rule accepts how much of the same draft: a matter of speed, never of law."""
    laws = [np.array(P), np.tile(P, (3, 1))]
    rate = lambda q, **settings: expected_accepted(Rejection(), laws, [np.array(q)], **settings)[0]
    assert rate(Q) == pytest.approx(0.7, abs=TOLERANCE)  # sum min(p, q)
    assert rate([1.0, 0, 0], one_hot=True) == pytest.approx(0.3, abs=TOLERANCE)  # p of the argmax
    assert rate(Q, one_hot=True) == pytest.approx(0.35, abs=TOLERANCE)  # sum p q
    assert rate(P) == pytest.approx(1.0, abs=TOLERANCE)


def test_block_accepts_at_least_as_much():
    """P(n >= i) of the block rule is E[b_i], never below the token rule's; equal where q is one-hot."""
    gain = 0.0
    for _, p, q in tables(2):
        token, block = expected_accepted(Rejection(), p, q), expected_accepted(Block(), p, q)
        assert np.all(block >= token - TOLERANCE)
        gain = max(gain, (block - token).sum())
        b = np.minimum(1, np.minimum(1, ratio(p[0], q[0]))[:, None] * ratio(p[1], q[1]))
        assert block[1] == pytest.approx(np.sum(q[0][:, None] * q[1] * b), abs=TOLERANCE)
        np.testing.assert_allclose(
            expected_accepted(Block(), p, q, one_hot=True),
            expected_accepted(Rejection(), p, q, one_hot=True),
            atol=TOLERANCE,
        )
    assert gain > 0.05


def ratio(p, q):
    return np.where(q > 0, p / np.where(q > 0, q, 1), 0)


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: type(rule).__name__)
def test_an_impossible_draft_is_refused_by_a_coin_of_zero(rule):
    target = jnp.array([[0.0, 0.4, 0.6], [1.0, 0.0, 0.0]])
    for probs in (None, jnp.array([[1.0, 0.0, 0.0]]), jnp.array([[0.5, 0.5, 0.0]])):
        proposal = Proposal(tokens=jnp.array([0]), probs=probs, num_drafted=jnp.int32(1))
        verdict = rule.accept(Coins(accept=jnp.zeros(1), final=jnp.float32(0)), proposal, target)
        assert verdict.num_accepted == 0 and verdict.next_token in (1, 2)


@pytest.mark.parametrize("rule", [Rejection(), Block()])
def test_a_draft_no_law_could_have_given_is_refused(rule):
    """An id outside of the vocabulary, and one with p = q = 0: the sign of a broken drafter."""
    target = jnp.array([[0.0, 0.4, 0.6], [0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
    coins = Coins(accept=jnp.zeros(2), final=jnp.float32(0.5))
    for token in (-1, 3):
        proposal = Proposal(tokens=jnp.array([token, 1]), probs=None, num_drafted=jnp.int32(2))
        assert rule.accept(coins, proposal, target).num_accepted == 0
    impossible = Proposal(
        tokens=jnp.array([0, 1]), probs=jnp.array([[0, 0.5, 0.5]] * 2), num_drafted=jnp.int32(2)
    )
    assert rule.accept(coins, impossible, target).num_accepted == 0


def test_draw_law():
    for rule in LOSSLESS:
        probs = np.array([[0.2, 0.0, 0.8], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        np.testing.assert_allclose(draw_law(rule, probs), probs, atol=2e-7)


@pytest.mark.parametrize("lenience", [0.0, -0.5, 1.5, float("nan")])
def test_lenience_out_of_range(lenience):
    with pytest.raises(ValueError, match="lenience must lie in"):
        Rejection(lenience=lenience)
    assert Rejection().lossless and not Rejection(lenience=0.3).lossless


def test_lenience_changes_nothing_at_temperature_zero():
    for p, q in itertools.product(np.eye(V), np.eye(V)):
        np.testing.assert_array_equal(one_token(p, q, Rejection(lenience=0.5)), p)
