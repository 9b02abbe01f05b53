"""The tree rules on chains, the laws of their children, and drafts that no honest drafter makes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Block, OneHotWalk, RecursiveRejection, Rejection, SpecInfer, Traversal
from specjax.acceptance.chain import Coins
from specjax.testing.law import GRID, first_change
from specjax.testing.tree_drafts import with_replacement, without_replacement
from specjax.testing.tree_law import OnChain
from specjax.trees.contracts import TreeProposal
from specjax.trees.topology import make_tree
from specjax.types import Proposal

TOLERANCE = 1e-6
V = 3
RULES = [RecursiveRejection(), SpecInfer(), Traversal()]
BY_NAME = {"ids": lambda value: type(value).__name__ if hasattr(value, "lossless") else ""}


@pytest.mark.parametrize(
    ("rule", "chain_rule"),
    [(RecursiveRejection(), Rejection()), (SpecInfer(), Rejection()), (Traversal(), Block())],
    **BY_NAME,
)
def test_a_chain_gives_the_chain_rule(rule, chain_rule):
    """Coin for coin, whatever number was drafted; so all that is proven of the chain rule holds."""
    rng = np.random.default_rng(4)
    count, gamma = 3000, 3
    p = rng.dirichlet(np.full(V, 0.7), (count, gamma + 1)).astype(np.float32)
    q = rng.dirichlet(np.full(V, 0.7), (count, gamma)).astype(np.float32)
    tokens = np.array([[rng.choice(V, p=row / row.sum()) for row in rows] for rows in q.astype(float)])
    proposals = Proposal(
        tokens=jnp.array(tokens), probs=jnp.array(q), num_drafted=jnp.arange(count) % (gamma + 1)
    )
    uniforms = rng.random((count, gamma + 1), np.float32)
    coins = Coins(accept=uniforms[:, :gamma], final=uniforms[:, gamma])
    verdict = jax.jit(jax.vmap(OnChain(rule=rule).accept))(coins, proposals, p)
    expected = jax.jit(jax.vmap(chain_rule.accept))(coins, proposals, p)
    np.testing.assert_array_equal(verdict.num_accepted, expected.num_accepted)
    assert np.mean(np.asarray(verdict.next_token) == expected.next_token) > 0.999  # residuals round
    assert set(np.asarray(verdict.num_accepted).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("rule", "children"),
    [(RecursiveRejection(), without_replacement), (SpecInfer(), with_replacement)],
    **BY_NAME,
)
def test_children_are_drawn_from_their_law(rule, children):
    """The kernel's exact law: each uniform bisected after those before it."""

    @jax.jit
    def boundaries(q, uniforms, i):
        token = lambda u: rule.draw_children(uniforms.at[i].set(u), q)[0][i]
        return jax.vmap(lambda v: first_change(lambda u: token(u) >= v))(jnp.arange(1, V))

    for q in ([0.5, 0.3, 0.2], [0.7, 0.0, 0.3], [0.0, 1.0, 0.0], [0.05, 0.05, 0.9]):
        q = np.array(q)
        drawn = min(3, np.count_nonzero(q)) if children is without_replacement else 3
        law = {(): (1.0, np.zeros(3, np.float32))}
        for i in range(drawn):
            longer = {}
            for tokens, (weight, uniforms) in law.items():
                ends = np.array([0, *boundaries(jnp.float32(q), jnp.asarray(uniforms), i), GRID])
                for token in np.flatnonzero(np.diff(ends)):
                    middle = uniforms.copy()
                    middle[i] = (ends[token] + ends[token + 1]) // 2 / GRID
                    longer[(*tokens, int(token))] = (weight * np.diff(ends)[token] / GRID, middle)
            law = longer
        expected = children(q, 3)
        assert law.keys() == expected.keys()
        for tokens, (weight, _) in law.items():
            assert weight == pytest.approx(expected[tokens], abs=TOLERANCE)
        valid = rule.draw_children(jnp.full(3, 0.5), jnp.float32(q))[1]
        assert valid.tolist() == [True] * drawn + [False] * (3 - drawn)


@pytest.mark.parametrize("rule", [*RULES, OneHotWalk()], **BY_NAME)
@pytest.mark.parametrize("nothing", [0.0, np.nan])
def test_a_law_without_mass_has_no_children(rule, nothing):
    """As a draft model's where all it knows is banned."""
    assert not rule.draw_children(jnp.full(3, 0.5), jnp.full(V, nothing))[1].any()


def test_the_likeliest_children():
    tokens, valid = OneHotWalk().draw_children(jnp.zeros(4), jnp.array([0.3, 0.0, 0.7]))
    assert tokens[:2].tolist() == [2, 0] and valid.tolist() == [True, True, False, False]


@functools.partial(jax.jit, static_argnums=0)
def judge_padded(rule, tokens, valid, q, p, coin):
    tree = make_tree(tokens, jnp.array([-1, 0, 0, 0, 0]), max_depth=1, valid=valid)
    laws = None if q is None else jnp.tile(q, (5, 1))
    coins = Coins(accept=jnp.full(5, coin), final=coin)
    return rule.accept(coins, TreeProposal(tree=tree, probs=laws), jnp.tile(p, (5, 1)))


def judge_star(rule, siblings, q, p, coin=0.0):
    """The verdict on up to 4 siblings below the root."""
    tokens = jnp.array([0, *siblings, *[1] * (4 - len(siblings))])
    q = None if q is None else jnp.float32(q)
    return judge_padded(rule, tokens, jnp.arange(5) <= len(siblings), q, jnp.float32(p), jnp.float32(coin))


@pytest.mark.parametrize("rule", [*RULES, OneHotWalk()], **BY_NAME)
def test_what_the_target_excludes_is_refused_by_a_coin_of_zero(rule):
    verdict = judge_star(rule, [0, 1], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0])
    assert verdict.num_accepted == 0 and verdict.next_token == 2


@pytest.mark.parametrize("rule", RULES, **BY_NAME)
def test_what_the_draft_law_excludes_is_passed_over(rule):
    """Ids outside of the vocabulary, and of q = 0: no coin, and the law of the rest is p."""
    verdict = judge_star(rule, [-1, 3, 2], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5], coin=0.0)
    assert verdict.num_accepted == 0 and verdict.next_token == 0
    assert judge_star(rule, [-1, 3, 2, 1], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]).path[0] == 4


@pytest.mark.parametrize("rule", RULES, **BY_NAME)
def test_sampled_children_need_their_law(rule):
    with pytest.raises(ValueError, match="needs probs"):
        judge_star(rule, [0, 1], None, [0.2, 0.3, 0.5])


@pytest.mark.parametrize("rule", [*RULES, OneHotWalk()], **BY_NAME)
def test_equal_laws_accept_a_path_to_a_leaf(rule):
    """p = q: the first child is accepted by the sampled rules, whatever its coin."""
    p = [0.2, 0.3, 0.5]
    verdict = judge_star(rule, [0, 1, 2], p, p, coin=0.999)
    assert verdict.num_accepted == 1
    assert rule.lossless and (isinstance(rule, OneHotWalk) or verdict.path[0] in (1, 3))
