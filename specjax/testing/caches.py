"""Looking into KV caches slot by slot, whatever the layout."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from specjax.cache import KVCache
from specjax.types import Array


def by_slot(cache: KVCache) -> tuple[Array, ...]:
    """Keys and values of every layer, 2L x [..., S, Hkv, Dh]."""
    keys = tuple(jnp.moveaxis(rows, -1, -3) for rows in cache.keys)
    return (*keys, *(jnp.moveaxis(rows, -2, -3) for rows in cache.values))


def poisoned(cache: KVCache, value: float = 1e4) -> KVCache:
    """``cache``, of one row or a batch, with ``value`` in every slot that no reader should see."""
    dead = jnp.arange(cache.max_len) >= jnp.asarray(cache.length)[..., None]  # [..., S]
    spoil = lambda rows, where: tuple(jnp.where(where, value, x) for x in rows)
    return dataclasses.replace(
        cache,
        keys=spoil(cache.keys, dead[..., None, None, :]),
        values=spoil(cache.values, dead[..., None, :, None]),
    )


def largest_difference(cache: KVCache, other: KVCache) -> Array:
    """[...]: between the committed slots of two caches of the same rows."""
    alive = (jnp.arange(cache.max_len) < jnp.asarray(cache.length)[..., None])[..., None, None]
    gaps = [
        jnp.max(jnp.where(alive, jnp.abs(mine - theirs), 0.0), axis=(-3, -2, -1))
        for mine, theirs in zip(by_slot(cache), by_slot(other), strict=True)
    ]
    return jax.tree.reduce(jnp.maximum, gaps)
