"""From the logits of a draft model to the law that is drafted from, chain or tree."""

from __future__ import annotations

import math

import jax.numpy as jnp

from specjax.types import Array, SamplingParams, Warp


def over_target_vocabulary(logits: Array, vocab_size: int, num_ids: int | None) -> Array:
    """[..., Vq] -> [..., V]: -inf, that is q = 0, for every id the two models do not share.

    Ids at and past ``num_ids`` are padding of the draft model's output; None: there are none.
    """
    shared = min(num_ids or logits.shape[-1], logits.shape[-1], vocab_size)
    missing = [(0, 0)] * (logits.ndim - 1) + [(0, vocab_size - shared)]
    return jnp.pad(logits[..., :shared], missing, constant_values=-jnp.inf)


def draft_law(logits: Array, drafted: Array, warp: Warp, temperature: float | None) -> Array:
    """q [T, V] float32 of ``logits`` [T, V] that stand after the draft tokens ``drafted`` [T, N].

    By the request's own warp; a ``temperature`` replaces its sampling
    parameters, but not its processors.
    """
    if temperature is None:
        return warp(logits, drafted)
    own = SamplingParams(
        temperature=jnp.float32(temperature),
        top_k=jnp.int32(0),
        top_p=jnp.float32(1),
        min_p=jnp.float32(0),
    )
    return warp(logits, drafted, own)


def check_settings(name: str, sizes: dict[str, int | None], temperature: float | None) -> None:
    """ValueError if a size of the drafter ``name`` is below 1 or its temperature no temperature."""
    for field, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name}.{field} must be at least 1, got {size!r}")
    if temperature is not None and not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"{name}.temperature must be None or a number >= 0, got {temperature!r}")
