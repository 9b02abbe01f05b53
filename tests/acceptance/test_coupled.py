"""Coupled sampling is lossless for each seed: it emits the target's own draws, whatever was drafted."""

import jax
from jax.extend.random import threefry_2x32
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Coupled, coupled
from specjax.types import Proposal

RULE = Coupled()
GAMMA, V = 3, 5
COUNT = 200_000


@pytest.fixture(scope="module")
def judge():
    """accept, and the target's own draws at positions length..length+G, over a batch."""

    @jax.jit
    @jax.vmap
    def run(seed, length, tokens, num_drafted, target_probs):
        _, noise = RULE.noise(jax.random.key(seed), jnp.int32(0), length, GAMMA, V)
        verdict = RULE.accept(
            noise, Proposal(tokens=tokens, probs=None, num_drafted=num_drafted), target_probs
        )
        return verdict, jax.vmap(RULE.draw)(noise, target_probs)

    return run


def test_emits_the_targets_own_draws(judge):
    """Drafts that agree for 0, 1, .. tokens, submitted in all lengths: exact identity, 400 cases."""
    rng = np.random.default_rng(0)
    count = 400
    p = rng.dirichlet(np.full(V, 0.5), (count, GAMMA + 1)).astype(np.float32)
    p[::2, :, 1] = 0  # a banned token in every second case
    seeds, lengths = np.arange(count, dtype=np.uint32), rng.integers(1, 50, count).astype(np.int32)
    drafted = rng.integers(0, GAMMA + 1, count).astype(np.int32)
    _, own = judge(seeds, lengths, np.zeros((count, GAMMA), np.int32), drafted, p)
    own = np.asarray(own)
    agreed = rng.integers(0, GAMMA + 1, count)
    tokens = np.where(np.arange(GAMMA) < agreed[:, None], own[:, :GAMMA], (own[:, :GAMMA] + 1) % V)
    verdict, _ = judge(seeds, lengths, tokens.astype(np.int32), drafted, p)
    expected = np.minimum(agreed, drafted)
    np.testing.assert_array_equal(verdict.num_accepted, expected)
    np.testing.assert_array_equal(verdict.next_token, own[np.arange(count), expected])
    assert not np.any(own[::2] == 1)


def test_noise_belongs_to_the_position():
    """Not to the round, nor to gamma, nor to where in the block the position stands."""
    key = jax.random.key(3)
    _, wide = RULE.noise(key, jnp.int32(0), jnp.int32(10), 4, V)
    draft, narrow = RULE.noise(key, jnp.int32(7), jnp.int32(12), 1, V)
    np.testing.assert_array_equal(narrow, wide[2:4])
    np.testing.assert_array_equal(draft, narrow[:1])
    assert len(np.unique(wide)) == wide.size


def test_the_bits_are_threefrys():
    """JAX's own block cipher at the counters (position, index): every word is used, an odd one left over."""
    key, positions = jax.random.key(7), [9, 10, 4096]
    for count in (6, 7):
        got = coupled._random_bits(key, jnp.array(positions), count)
        half = np.arange((count + 1) // 2, dtype=np.uint32)
        for row, position in zip(np.asarray(got), positions, strict=True):
            counters = np.concatenate([np.full_like(half, position), half])
            expected = threefry_2x32(jax.random.key_data(key), jnp.asarray(counters))
            np.testing.assert_array_equal(row, np.asarray(expected)[:count])


@pytest.fixture(scope="module")
def draws():
    """[N] draws of seeds 0..N-1 from each of two laws, with the noise of one position."""

    @jax.jit
    def run(p, q):
        noise = lambda seed: RULE.noise(jax.random.key(seed), jnp.int32(0), jnp.int32(9), 0, V)[1][0]
        both = lambda noise: (RULE.draw(noise, p), RULE.draw(noise, q))
        return jax.vmap(lambda seed: both(noise(seed)))(jnp.arange(COUNT, dtype=jnp.uint32))

    return lambda p, q: [np.asarray(x) for x in run(jnp.float32(p), jnp.float32(q))]


def test_draw_follows_the_law(draws):
    """Each frequency within 5 standard deviations."""
    p, q = np.array([0.5, 0.3, 0.0, 0.15, 0.05]), np.full(V, 0.2)
    for law, tokens in zip((p, q), draws(p, q)):
        seen = np.bincount(tokens, minlength=V) / COUNT
        assert np.all(np.abs(seen - law) <= 5 * np.sqrt(law * (1 - law) / COUNT))


@pytest.mark.parametrize("seed", range(3))
def test_match_probability(draws, seed):
    """sum_v 1 / sum_u max(p_u / p_v, q_u / q_v), from (1 - TV) / (1 + TV) to 1 - TV; within 5 sd."""
    p, q = np.random.default_rng(seed).dirichlet(np.full(V, 0.7), 2) + 1e-9
    formula = sum(1 / np.maximum(p / p[v], q / q[v]).sum() for v in range(V))
    distance = np.abs(p - q).sum() / 2
    assert (1 - distance) / (1 + distance) <= formula + 1e-9 <= 1 - distance + 2e-9
    own, drafted = draws(p, q)
    assert np.mean(own == drafted) == pytest.approx(formula, abs=5 * np.sqrt(0.25 / COUNT))


def test_equal_laws_always_match_and_greedy_needs_no_noise(judge):
    p = np.tile(np.eye(V, dtype=np.float32)[2], (2, GAMMA + 1, 1))
    drafts = np.array([[2, 2, 2], [2, 0, 2]], np.int32)
    verdict, _ = judge(np.uint32([0, 1]), np.int32([4, 4]), drafts, np.int32([3, 3]), p)
    np.testing.assert_array_equal(verdict.num_accepted, [3, 1])
    np.testing.assert_array_equal(verdict.next_token, [2, 2])
    assert RULE.lossless
