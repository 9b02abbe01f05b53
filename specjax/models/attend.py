"""The attention product, over as much of a buffer as has been written."""

from __future__ import annotations

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp

from specjax.types import Array

Branch = Callable[..., Array]

_PARTS = (4, 2)  # a prefix is a buffer over one of these, or the buffer


def soft_cap(x: Array, cap: float) -> Array:
    """Squashes ``x`` into (-cap, cap), smoothly (Gemma 2, arXiv 2408.00118, section 2).

    >>> soft_cap(jnp.array([0.0, 1e3]), 30.0).tolist()
    [0.0, 30.0]
    """
    return cap * jnp.tanh(x / cap)


def attend(q: Array, keys: Array, values: Array, mask: Array, *, scale: float, cap: float | None) -> Array:
    """q [T, Hkv, G, Dh], keys [Hkv, Dh, S], values [Hkv, S, Dh], mask [T, S] -> [T, Hkv, G, Dh]."""
    # Both products take the cache as it lies: otherwise XLA would transpose all of it at every step.
    scores = jnp.einsum("thgd,hds->htgs", q, keys, preferred_element_type=jnp.float32) * scale
    if cap is not None:
        scores = soft_cap(scores, cap)
    scores = jnp.where(mask[:, None, :], scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    return jnp.einsum("htgs,hsd->htgd", weights, values).swapaxes(0, 1)


# Under jit of its own, or a call outside of any would compile its branches each time.
@functools.partial(jax.jit, static_argnames=("scale", "cap"), inline=True)
def attend_written(
    q: Array, keys: Array, values: Array, mask: Array, written: Array, *, scale: float, cap: float | None
) -> Array:
    """:func:`attend` where ``mask`` lets no token see a slot at or past ``written`` [] int32.

    A CPU reads no more than a prefix that holds what is written: a branch for
    each of :func:`prefix_sizes`. The batch takes that of its longest row, finished
    ones included. Other devices read the whole buffer, which costs them less than a
    branch a layer. Derivatives are those of :func:`attend`.
    """
    full = functools.partial(attend, scale=scale, cap=cap)
    if q.shape[0] == keys.shape[-1]:
        return full(q, keys, values, mask)

    @jax.custom_jvp
    def by_platform(q: Array, keys: Array, values: Array, mask: Array, written: Array) -> Array:
        bounded = functools.partial(_bounded, full)
        whole = lambda *args: full(*args[:-1])
        return jax.lax.platform_dependent(q, keys, values, mask, written, cpu=bounded, default=whole)

    @by_platform.defjvp
    def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
        return jax.jvp(functools.partial(full, mask=primals[3]), primals[:3], tangents[:3])

    return by_platform(q, keys, values, mask, written)


def prefix_sizes(size: int) -> tuple[int, ...]:
    """Slots of each prefix of a buffer of ``size``, in steps of 32, the whole buffer last.

    >>> prefix_sizes(1184), prefix_sizes(96)
    ((320, 608, 1184), (32, 64, 96))
    """
    rounded = {32 * -(-size // (32 * part)) for part in _PARTS}
    return (*sorted(each for each in rounded if each < size), size)


def _bounded(attend: Branch, q: Array, keys: Array, values: Array, mask: Array, written: Array):
    """By branches; under ``vmap`` one branch for all rows, where a branch a row would mean to run all."""

    def switch(over_rows: Callable[[Branch], Branch], written: Array, *args: Array) -> Array:
        sizes = prefix_sizes(keys.shape[-1])
        prefix = lambda size: (
            lambda q, keys, values, mask: attend(q, keys[..., :size], values[:, :size], mask[:, :size])
        )
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
