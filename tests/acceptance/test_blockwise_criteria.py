"""The approximate criteria accept what the paper says they accept, and say that they are lossy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance.blockwise_criteria import Distance, MinimumBlock, TopMembership
from specjax.types import Proposal

# Likeliest first: 2 0 1 3, 0 1 2 3, 3 2 1 0, and after all drafts 1.
PROBS = jnp.array([[0.3, 0.2, 0.4, 0.1], [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.2, 0.5, 0.2, 0.1]])


def judge(rule, tokens, num_drafted=3):
    noise = rule.noise(jax.random.key(0), jnp.int32(0), jnp.int32(4), 3, 4)[1]
    proposal = Proposal(tokens=jnp.array(tokens), probs=None, num_drafted=jnp.int32(num_drafted))
    verdict = rule.accept(noise, proposal, PROBS)
    return int(verdict.num_accepted), int(verdict.next_token)


@pytest.mark.parametrize(
    ("rule", "tokens", "expected"),
    [
        (TopMembership(size=1), [2, 0, 3], (3, 1)),  # the exact criterion
        (TopMembership(size=1), [2, 1, 3], (1, 0)),
        (TopMembership(size=2), [2, 1, 3], (3, 1)),
        (TopMembership(size=2), [0, 2, 3], (1, 0)),
        (TopMembership(size=2), [9, 0, 3], (0, 2)),  # no id of the vocabulary
        (Distance(epsilon=0), [2, 0, 3], (3, 1)),
        (Distance(epsilon=1), [3, 1, 2], (3, 1)),
        (Distance(epsilon=1), [3, 2, 3], (1, 0)),
        (MinimumBlock(size=1), [3, 0, 3], (0, 2)),
        (MinimumBlock(size=2), [3, 1, 3], (1, 0)),
        (MinimumBlock(size=3), [3, 1, 3], (3, 1)),  # two forced, the third is right
        (MinimumBlock(size=3), [3, 1, 0], (2, 3)),
    ],
)
def test_criteria(rule, tokens, expected):
    assert judge(rule, tokens) == expected
    assert not rule.lossless


@pytest.mark.parametrize("rule", [TopMembership(size=4), Distance(epsilon=9), MinimumBlock(size=9)])
def test_nothing_is_accepted_that_was_not_drafted(rule):
    assert judge(rule, [0, 1, 2], num_drafted=1) == (1, 0)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: TopMembership(size=0), "size must be at least 1"),
        (lambda: Distance(epsilon=-1), "epsilon must be at least 0"),
        (lambda: MinimumBlock(size=0), "size must be at least 1"),
    ],
)
def test_impossible_parameters(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_vmaps():
    rule = TopMembership(size=2)
    tokens = jnp.array([[2, 1, 3], [0, 2, 3]])
    proposals = Proposal(tokens=tokens, probs=None, num_drafted=jnp.array([3, 3]))
    noise = rule.noise(jax.random.key(0), jnp.int32(0), jnp.int32(4), 3, 4)[1]
    verdicts = jax.vmap(lambda proposal: rule.accept(noise, proposal, PROBS))(proposals)
    np.testing.assert_array_equal(verdicts.num_accepted, [3, 1])
