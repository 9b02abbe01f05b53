"""The attention product, over as much of a buffer as has been written."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
import functools
import math

import jax
import jax.numpy as jnp

from specjax.types import Array

_EIGHTHS = (1, 2, 4, 6)  # of a buffer: where a prefix may end besides at its last slot


def soft_cap(x: Array, cap: float) -> Array:
    """Squashes ``x`` into (-cap, cap), smoothly (Gemma 2, arXiv 2408.00118, section 2).

    >>> soft_cap(jnp.array([0.0, 1e3]), 30.0).tolist()
    [0.0, 30.0]
    """
    return cap * jnp.tanh(x / cap)


def attend(q: Array, keys: Array, values: Array, mask: Array, *, scale: float, cap: float | None) -> Array:
    """q [T, Hkv, G, Dh], keys and values [Hkv, S, Dh], mask [T, S] -> [T, Hkv, G, Dh]."""
    # Both products take the cache as it lies, [S, Dh]; asked for another order of their
    # results, XLA would transpose all of it at every step.
    scores = jnp.einsum("hsd,thgd->hstg", keys, q, preferred_element_type=jnp.float32) * scale
    if cap is not None:
        scores = soft_cap(scores, cap)
    scores = jnp.where(mask.T[:, :, None], scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=1).astype(values.dtype)
    return jnp.einsum("hstg,hsd->htgd", weights, values).swapaxes(0, 1)


def attend_written(
    q: Array, keys: Array, values: Array, mask: Array, written: Array, *, scale: float, cap: float | None
) -> Array:
    """:func:`attend` where ``mask`` lets no token see a slot at or past ``written`` [] int32.

    A CPU reads no more than a prefix that holds what is written: a branch for
    each of :func:`prefix_sizes`. The batch takes that of its longest row. Other
    devices read the whole buffer, which costs them less than a branch a layer.
    """
    full = functools.partial(attend, scale=scale, cap=cap)
    if q.shape[0] == keys.shape[1]:  # fills the buffer; so do training and scoring, which differentiate
        return full(q, keys, values, mask)
    bounded = functools.partial(_bounded, full)
    return jax.lax.platform_dependent(
        q, keys, values, mask, written, cpu=bounded, default=lambda *args: full(*args[:-1])
    )


def prefix_sizes(size: int) -> tuple[int, ...]:
    """Slots of each prefix of a buffer of ``size``, in steps of 32, the whole buffer last.

    >>> prefix_sizes(1184), prefix_sizes(96)
    ((160, 320, 608, 896, 1184), (32, 64, 96))
    """
    part = lambda eighths: 32 * math.ceil(Fraction(eighths * size, 8 * 32))
    return (*sorted({part(eighths) for eighths in _EIGHTHS if part(eighths) < size}), size)


def _bounded(attend: Callable[..., Array], q: Array, keys: Array, values: Array, mask: Array, written: Array):
    """By branches; under ``vmap`` one branch for all rows, where a branch a row would mean to run all."""

    def switch(over_rows: Callable[..., Array], written: Array, *args: Array) -> Array:
        sizes = prefix_sizes(keys.shape[1])
        prefix = lambda size: lambda q, keys, values, mask: attend(q, keys[:, :size], values[:, :size], mask[:, :size])
        branches = [over_rows(prefix(size)) for size in sizes]
        return jax.lax.switch(jnp.sum(written > jnp.array(sizes[:-1], jnp.int32)), branches, *args)

    @jax.custom_batching.custom_vmap
    def of_row(q: Array, keys: Array, values: Array, mask: Array, written: Array) -> Array:
        return switch(lambda branch: branch, written, q, keys, values, mask)

    @of_row.def_vmap
    def _(axis_size: int, batched: list[bool], *args: Array) -> tuple[Array, bool]:
        axes = tuple(0 if each else None for each in batched[:-1])
        over_rows = lambda branch: jax.vmap(branch, in_axes=axes, axis_size=axis_size)
        return switch(over_rows, jnp.max(args[-1]), *args[:-1]), True

    return of_row(q, keys, values, mask, written)
