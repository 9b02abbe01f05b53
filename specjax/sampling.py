"""From logits to probabilities, and from probabilities to a token.

``warp`` is the ONE function for p and q (Leviathan et al. 2023, section 2.2,
"standardized sampling"): every way of sampling is plain sampling from an
adjusted distribution, and the guarantee is about the adjusted ones.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax.types import Array, SamplingParams, pytree

GREEDY_BELOW = 1e-5  # the single threshold of the whole library
_BLOCK = 256  # entries summed together in the first level of a draw


@pytree
class ActiveFilters:
    """Which filters any row of a batch uses; unbatched [] bool, so a ``cond`` really skips."""

    sampled: Array  # some row is not greedy
    top_k: Array
    top_p: Array
    min_p: Array


def active_filters(sampling: SamplingParams) -> ActiveFilters:
    """Flags over a whole batch (or one row), computed once per decode."""
    sampled = sampling.temperature >= GREEDY_BELOW
    return ActiveFilters(
        sampled=jnp.any(sampled),
        top_k=jnp.any(sampled & (sampling.top_k > 0)),
        top_p=jnp.any(sampled & (sampling.top_p < 1)),
        min_p=jnp.any(sampled & (sampling.min_p > 0)),
    )


def warp(logits: Array, sampling: SamplingParams, active: ActiveFilters | None = None) -> Array:
    """Logits [T, V] of one row to the probabilities [T, V] float32 that are sampled.

    Order: temperature, top-k, renormalise, top-p, min-p, renormalise. A
    temperature below ``GREEDY_BELOW`` gives a one-hot at the first maximum,
    whatever the filters say. Logits of -inf have probability 0.

    >>> from specjax.request import make_request
    >>> row = jax.tree.map(lambda x: x[0], make_request(
    ...     prompt_length=[1], max_new_tokens=1, seed=0, temperature=1.0, top_k=2).sampling)
    >>> [f"{p:.3f}" for p in warp(jnp.log(jnp.array([[.5, .3, .15, .05]])), row)[0]]
    ['0.625', '0.375', '0.000', '0.000']
    """
    active = active_filters(sampling) if active is None else active
    logits = logits.astype(jnp.float32)
    greedy = sampling.temperature < GREEDY_BELOW
    one_hot = jax.nn.one_hot(first_argmax(logits), logits.shape[-1], dtype=jnp.float32)

    def sampled(logits: Array) -> Array:
        shifted = logits - jnp.max(logits, axis=-1, keepdims=True)
        probs = jax.nn.softmax(shifted / jnp.where(greedy, 1.0, sampling.temperature), axis=-1)
        for flag, used, keep, value in (
            (active.top_k, sampling.top_k > 0, _keep_top_k, sampling.top_k),
            (active.top_p, sampling.top_p < 1, _keep_top_p, sampling.top_p),
            (active.min_p, sampling.min_p > 0, _keep_min_p, sampling.min_p),
        ):
            probs = jax.lax.cond(flag, _filter(used, keep, value), lambda probs: probs, probs)
        return jnp.where(greedy, one_hot, probs)

    return jax.lax.cond(active.sampled, sampled, lambda _: one_hot, logits)


def first_argmax(values: Array) -> Array:
    """Index [...] int32 of the first maximum of ``values`` [..., V].

    Two plain reductions: XLA's CPU backend does not vectorise ``argmax``
    (seven times slower at V = 4,096).

    >>> int(first_argmax(jnp.array([1.0, 3.0, 3.0])))
    1
    """
    size = values.shape[-1]
    index = jnp.arange(size, dtype=jnp.int32)
    at_maximum = values == values.max(axis=-1, keepdims=True)
    return jnp.where(at_maximum, index, size - 1).min(axis=-1)


def draw(uniform: Array, weights: Array) -> Array:
    """A token [] int32 with probability proportional to ``weights`` [V], by inverse CDF.

    ``uniform`` [] in [0, 1). Two levels, blocks of 256 and then entries. A
    float cumulative sum is neither monotone nor flat over zeros, so an entry
    also needs a positive weight to be chosen.

    >>> int(draw(jnp.float32(0.0), jnp.array([0.0, 0.25, 0.75])))
    1
    """
    size = weights.shape[-1]
    blocks = jnp.pad(weights, (0, -size % _BLOCK)).reshape(-1, _BLOCK)
    sums = blocks.sum(axis=1)
    upto = jnp.cumsum(sums)
    target = uniform * upto[-1]
    block = _first_or_last((upto > target) & (sums > 0), sums > 0)
    before = jnp.where(block > 0, upto[block - 1], 0.0)
    row = blocks[block]
    entry = _first_or_last((before + jnp.cumsum(row) > target) & (row > 0), row > 0)
    return (block * _BLOCK + entry).astype(jnp.int32)


def _first_or_last(preferred: Array, possible: Array) -> Array:
    """Index of the first True of ``preferred``; if there is none, of the last of ``possible``."""
    last = possible.shape[0] - 1 - jnp.argmax(possible[::-1])
    return jnp.where(jnp.any(preferred), jnp.argmax(preferred), last)


def _filter(used: Array, keep: Callable[[Array, Array], Array], value: Array) -> Callable[[Array], Array]:
    """Zeroes what ``keep`` drops and renormalises each of the T rows, if the request uses the filter.

    Otherwise nothing is touched, not even a last bit: a row's law must not
    depend on which filters its neighbours use.
    """

    def apply(probs: Array) -> Array:
        kept = jnp.where(jax.vmap(keep, in_axes=(0, None))(probs, value), probs, 0.0)
        return jnp.where(used, kept / kept.sum(axis=-1, keepdims=True), probs)

    return apply


def _keep_top_k(probs: Array, k: Array) -> Array:
    """Mask of the k largest of ``probs`` [V], ties by lowest index."""
    threshold = _largest_threshold(lambda t: jnp.sum(probs >= t) >= k)
    above, tied = probs > threshold, probs == threshold
    return above | (tied & (jnp.cumsum(tied) <= k - above.sum()))


def _keep_top_p(probs: Array, top_p: Array) -> Array:
    """Mask of the nucleus (Holtzman et al. 2020): tokens before which less than top_p lies."""
    goal = top_p * probs.sum()
    threshold = _largest_threshold(lambda t: jnp.sum(jnp.where(probs >= t, probs, 0.0)) >= goal)
    above, tied = probs > threshold, probs == threshold
    before = jnp.sum(jnp.where(above, probs, 0.0)) + (jnp.cumsum(tied) - 1) * threshold
    return above | (tied & (before < goal))


def _keep_min_p(probs: Array, min_p: Array) -> Array:
    """Mask of tokens at least ``min_p`` times as likely as the likeliest."""
    return probs >= min_p * probs.max()


def _largest_threshold(enough: Callable[[Array], Array]) -> Array:
    """The largest float32 t in [0, 1] for which the monotone ``enough(t)`` still holds.

    Bisection over bit patterns, which order non-negative floats: exact in 30
    steps, where sorting a vocabulary of 49,152 costs some forty times more.
    """

    def step(index: Array, bits: Array) -> Array:
        candidate = bits | (jnp.int32(1) << (29 - index))
        return jnp.where(enough(jax.lax.bitcast_convert_type(candidate, jnp.float32)), candidate, bits)

    bits = jax.lax.fori_loop(0, 30, step, jnp.int32(0))
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
