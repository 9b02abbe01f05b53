"""The KV cache: rows and a length. Rolling back is setting the length."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specjax.types import Array, pytree


@pytree
class KVCache:
    """Keys and values of one row, one pair of arrays a layer.

    Slots at and past ``length`` hold leftovers of rejected tokens; readers
    mask by position, so they are never seen, and the next write replaces them.
    """

    # Slots lie along the last axis of keys: what scores them then reads, and writes, whole vectors.
    keys: tuple[Array, ...]  # L x [Hkv, Dh, S]
    values: tuple[Array, ...]  # L x [Hkv, S, Dh]
    length: Array  # [] int32

    @property
    def max_len(self) -> int:
        return self.keys[0].shape[-1]


def init_cache(*, num_layers: int, num_kv_heads: int, head_dim: int, max_len: int, dtype: Any) -> KVCache:
    """An empty cache for one row of at most ``max_len`` tokens."""
    return KVCache(
        keys=tuple(jnp.zeros((num_kv_heads, head_dim, max_len), dtype) for _ in range(num_layers)),
        values=tuple(jnp.zeros((num_kv_heads, max_len, head_dim), dtype) for _ in range(num_layers)),
        length=jnp.zeros((), jnp.int32),
    )


def write_keys(rows: Array, new: Array, start: Array) -> Array:
    """``new`` [T, Hkv, Dh] into ``rows`` [Hkv, Dh, S] at slots start..start+T-1.

    ``dynamic_update_slice`` clamps a start that does not fit and would
    overwrite committed rows without a word: buffers carry max_gamma + 2 slack.
    """
    return _write(rows, new.transpose(1, 2, 0), start, axis=2)


def write_values(rows: Array, new: Array, start: Array) -> Array:
    """``new`` [T, Hkv, Dh] into ``rows`` [Hkv, S, Dh]; else as :func:`write_keys`."""
    return _write(rows, new.transpose(1, 0, 2), start, axis=1)


def _write(rows: Array, new: Array, start: Array, axis: int) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(rows, new.astype(rows.dtype), start, axis)


def rewind(cache: KVCache, length: Array) -> KVCache:
    """The cache as if only the first ``length`` tokens had been fed."""
    return dataclasses.replace(cache, length=length)


def keep_path(cache: KVCache, start: Array, path: Array) -> KVCache:
    """``cache`` with the rows of ``path`` moved together, in path order, behind slot ``start``.

    A tree's node i was written at slot start + i. The nodes ``path`` [D], each
    at least its place in it, go to start + 1, start + 2, ...: where a chain
    would have written them, so that the length alone says what is kept. A few
    rows are read and written a layer, never a cache.

    Raises TypeError for a cache that is not of keys and values, as a table's.
    """
    if not isinstance(cache, KVCache):
        raise TypeError(
            f"trees need a target with a KVCache, whose rows can be moved; got {type(cache).__name__}"
        )
    if not path.shape[0]:
        return cache

    def move(rows: Array, axis: int) -> Array:
        return _write(rows, jnp.take(rows, start + path, axis=axis, mode="clip"), start + 1, axis)

    return dataclasses.replace(
        cache,
        keys=tuple(move(rows, 2) for rows in cache.keys),
        values=tuple(move(rows, 1) for rows in cache.values),
    )
