"""warp against a plain sort-based reference; draws that never return what has no probability."""

import functools

from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import sampling
from specjax.acceptance import Rejection
from specjax.request import make_request
from specjax.testing.law import draw_law

V, ROWS = 12, 8


def request_rows(**settings):
    return make_request(prompt_length=np.ones(ROWS, int), max_new_tokens=1, seed=0, **settings).sampling


@jax.jit
def warp_rows(logits, rows):
    """[ROWS, V] -> [ROWS, V]: each row by its own parameters, the filters' flags by the whole batch."""
    active = sampling.active_filters(rows)
    warp = lambda logits, row: sampling.warp(logits[None], row, active)[0]
    return jax.vmap(warp)(logits, rows)


def reference(logits, temperature, top_k, top_p, min_p):
    """float64, by sorting: temperature, top-k, renormalise, top-p, min-p, renormalise."""
    logits = logits.astype(np.float64)
    if temperature < 1e-5:
        return np.eye(V)[logits.argmax()]
    scaled = (logits - logits.max()) / temperature
    probs = np.exp(scaled) / np.exp(scaled).sum()
    order = np.argsort(-probs, kind="stable")  # ties by lowest index
    if top_k > 0:
        probs[order[top_k:]] = 0
        probs /= probs.sum()
    if top_p < 1:
        before = np.cumsum(probs[order]) - probs[order]
        probs[order[before >= top_p]] = 0
        probs /= probs.sum()
    if min_p > 0:
        probs[probs < min_p * probs.max()] = 0
    return probs / probs.sum()


@given(
    seed=st.integers(0, 10**6),
    tied=st.booleans(),
    temperature=st.lists(st.sampled_from([0.0, 1e-6, 0.37, 1.0, 2.3]), min_size=ROWS, max_size=ROWS),
    top_k=st.lists(st.sampled_from([0, 1, 2, 5, V, 40]), min_size=ROWS, max_size=ROWS),
    top_p=st.lists(st.sampled_from([1.0, 0.013, 0.53, 0.91, 0.99]), min_size=ROWS, max_size=ROWS),
    min_p=st.lists(st.sampled_from([0.0, 0.047, 0.31]), min_size=ROWS, max_size=ROWS),
)
def test_warp_is_the_reference(seed, tied, temperature, top_k, top_p, min_p):
    """Rows of one batch with parameters of their own, half of the cases full of ties."""
    logits = np.random.default_rng(seed).normal(size=(ROWS, V)) * 3
    logits = (np.round(logits) if tied else logits).astype(np.float32)
    rows = request_rows(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    got = warp_rows(logits, rows)
    for row, *settings in zip(range(ROWS), temperature, top_k, top_p, min_p):
        np.testing.assert_allclose(got[row], reference(logits[row], *settings), atol=2e-6)


def test_a_neighbours_filters_change_no_bit():
    """A filter runs for the batch when one row uses it; the others must come out as if alone."""
    logits = np.random.default_rng(0).normal(size=(ROWS, V)).astype(np.float32) * 3
    plain = warp_rows(logits, request_rows(temperature=1.0))
    last = np.arange(ROWS) == ROWS - 1
    mixed = warp_rows(
        logits,
        request_rows(
            temperature=1.0,
            top_k=np.where(last, 3, 0),
            top_p=np.where(last, 0.5, 1.0),
            min_p=np.where(last, 0.2, 0.0),
        ),
    )
    np.testing.assert_array_equal(mixed[:-1], plain[:-1])
    assert np.any(mixed[-1] != plain[-1])


def test_filters_in_turn():
    """p = [.5, .3, .15, .05]: top_k, then top_p, then temperature added; banned tokens exactly 0."""
    logits = np.full((ROWS, V), -np.inf, np.float32)
    logits[:, :4] = np.log([0.5, 0.3, 0.15, 0.05])
    rows = request_rows(
        temperature=[1.0, 1.0, 0.5, 1.0, 1.0, 0.0, 1.0, 1.0],
        top_k=[2, 3, 2, 0, 0, 2, 1, 0],
        top_p=[1.0, 0.75, 1.0, 0.5, 0.75, 0.5, 1.0, 1.0],
        min_p=[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.31],
    )
    expected = np.zeros((ROWS, V))
    expected[:, 0] = 1
    expected[0, :2] = 0.625, 0.375
    expected[1, :2] = 0.625, 0.375  # of [.526, .316, .158] the first two reach .75
    expected[2, :2] = 25 / 34, 9 / 34
    expected[4, :2] = 0.625, 0.375
    expected[7, :2] = 0.625, 0.375  # 0.3 is more than .31 * .5, and .15 is not
    got = np.asarray(warp_rows(logits, rows))
    np.testing.assert_allclose(got, expected, atol=1e-6)
    np.testing.assert_array_equal(got[expected == 0], 0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_greedy_threshold(dtype):
    """Below 1e-5 the argmax and nothing else; from 1e-5 on finite laws; logits up to 80; no NaN anywhere."""
    logits = np.random.default_rng(1).uniform(-80, 80, (ROWS, V))
    logits[:, :2] = 80.0, -80.0
    temperatures = np.array([0, 0.0, 1e-7, 1e-6, 9.9e-6, 1e-5, 1e-4, 1.0])
    got = np.asarray(warp_rows(jnp.asarray(logits, dtype), request_rows(temperature=temperatures)))
    np.testing.assert_array_equal(got[:5], np.tile(np.eye(V)[0], (5, 1)))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got.sum(axis=1), 1, atol=1e-6)


def test_ties_at_temperature_zero_go_to_the_lowest_index():
    """In a batch with sampled rows too, whatever the filters say; top_k = 1 is greedy at any temperature."""
    logits = np.zeros((ROWS, V), np.float32)
    logits[:, 3] = logits[:, 7] = 1.0
    rows = request_rows(
        temperature=[0, 0, 0, 0, 1, 1, 2, 1e-6],
        top_k=[0, 1, 5, 0, 1, 0, 1, 2],
        top_p=[1, 1, 1, 0.5, 1, 0.01, 1, 1],
        min_p=[0, 0, 0.5, 0, 0, 0, 0, 0],
    )
    np.testing.assert_array_equal(warp_rows(logits, rows), np.tile(np.eye(V)[3], (ROWS, 1)))


def test_first_argmax_is_argmax():
    values = np.random.default_rng(2).integers(0, 4, (50, V)).astype(np.float32)
    np.testing.assert_array_equal(sampling.first_argmax(jnp.asarray(values)), values.argmax(axis=1))


def large_laws():
    """V = 600, not a multiple of the block of 256: dense, sparse, first block empty, one-hot at the end."""
    rng = np.random.default_rng(3)
    dense = rng.dirichlet(np.ones(600))
    sparse = np.where(rng.random(600) < 0.9, 0, dense)
    late = np.where(np.arange(600) < 256, 0, dense)
    laws = np.stack([dense, sparse / sparse.sum(), late / late.sum(), np.eye(600)[599]])
    return laws.astype(np.float32)


def test_draw_follows_weights_exactly():
    """The law of the kernel over all values of its uniform: 1e-6 from the weights, 0 where they are 0."""
    laws = large_laws()
    got = draw_law(Rejection(), laws)
    np.testing.assert_allclose(got, laws, atol=1e-6)
    np.testing.assert_array_equal(got[laws == 0], 0)


def test_draw_does_not_need_normalised_weights():
    weights = np.array([[0.2, 0.0, 0.6], [0.0, 1e-30, 3e-30], [4e8, 0.0, 12e8]], np.float32)
    expected = np.array([[0.25, 0, 0.75], [0, 0.25, 0.75], [0.25, 0, 0.75]])
    np.testing.assert_allclose(draw_law(Rejection(), weights), expected, atol=1e-6)


@functools.partial(jax.jit)
@jax.vmap
def draw_rows(uniform, weights):
    return sampling.draw(uniform, weights)


@given(seed=st.integers(0, 10**6), zeros=st.sampled_from([0.0, 0.5, 0.99]))
def test_draw_never_returns_a_token_without_weight(seed, zeros):
    """At the ends of the uniform's range too, where a float cumulative sum misleads."""
    rng = np.random.default_rng(seed)
    weights = rng.exponential(size=(64, 300)) * 10.0 ** rng.integers(-8, 3, (64, 300))
    weights = np.where(rng.random(weights.shape) < zeros, 0, weights).astype(np.float32)
    weights[:, rng.integers(300)] = 1e-3
    uniforms = np.resize([0.0, np.float32(1 - 2**-23), *rng.random(6)], 64).astype(np.float32)
    tokens = np.asarray(draw_rows(uniforms, weights))
    assert np.all((tokens >= 0) & (tokens < 300))
    assert np.all(weights[np.arange(64), tokens] > 0)
