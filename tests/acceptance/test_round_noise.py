"""The noise of independent rules: no number of one purpose, entry, round or row is used again by another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.acceptance import Block, OneHotWalk, RecursiveRejection, Rejection, SpecInfer, Traversal

RULES = [Rejection(), Block(), OneHotWalk(), RecursiveRejection(), SpecInfer(), Traversal()]
SEEDS, ROUNDS, WIDTH = 3, 4, 6


def noise(rule, seed, round, width=WIDTH):
    """[2 * width + 1] numbers: draws, coins, and the final one."""
    draft, accept = rule.noise(jax.random.key(seed), jnp.int32(round), jnp.int32(9 + round), width, 5)
    return np.concatenate([draft, accept.accept, accept.final[None]])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_no_number_is_used_twice(rule):
    """156 numbers on a grid of 2^23: two are equal by chance in one of 690 seeds, and these are fixed."""
    numbers = np.stack([noise(rule, seed, round) for seed in range(SEEDS) for round in range(ROUNDS)])
    assert numbers.shape == (SEEDS * ROUNDS, 2 * WIDTH + 1)
    assert (numbers >= 0).all() and (numbers < 1).all()
    assert len(np.unique(numbers)) == numbers.size


def test_an_entry_does_not_depend_on_how_many_there_are():
    """So a bucket of another gamma draws and judges the same."""
    wide, narrow = noise(Rejection(), 0, 2), noise(Rejection(), 0, 2, width=2)
    np.testing.assert_array_equal(narrow, wide[[0, 1, WIDTH, WIDTH + 1, 2 * WIDTH]])


def test_the_length_plays_no_part():
    """Keys by position would be lossy for block and traversal verification."""
    args = jax.random.key(0), jnp.int32(1)
    first, second = (Traversal().noise(*args, jnp.int32(length), WIDTH, 5)[1] for length in (3, 7))
    np.testing.assert_array_equal(first.accept, second.accept)
