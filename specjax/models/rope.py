"""Rotary position embeddings (Su et al. 2021, arXiv 2104.09864), half-split layout as in Llama."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.types import Array


def rotations(positions: Array, head_dim: int, theta: float) -> tuple[Array, Array]:
    """(cos, sin), each [T, 1, Dh/2] float32, for ``positions`` [T].

    Computed, not looked up: there is no table whose end a position could pass.
    """
    exponent = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    angles = positions.astype(jnp.float32)[:, None, None] * theta**-exponent
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotates ``x`` [T, H, Dh]: its two halves are the coordinates of each plane."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
