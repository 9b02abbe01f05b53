"""Norms over features, computed in float32."""

from __future__ import annotations

from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from specjax.models.config import DecoderConfig
from specjax.types import Array


class RMSNorm(nnx.Module):
    """x / rms(x) * w (Zhang and Sennrich 2019, arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float, dtype: Any):
        self.weight = nnx.Param(jnp.ones((size,), dtype), axes=("norm",))
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return (wide * scale).astype(x.dtype) * self.weight[...]


class RMSNormPlusOne(nnx.Module):
    """x / rms(x) * (1 + w), rounded once at the end: Gemma's form."""

    def __init__(self, size: int, eps: float, dtype: Any):
        self.weight = nnx.Param(jnp.zeros((size,), dtype), axes=("norm",))
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return (wide * scale * (1 + self.weight[...].astype(jnp.float32))).astype(x.dtype)


class LayerNorm(nnx.Module):
    """(x - mean) / sd * w + b (Ba et al. 2016, arXiv 1607.06450)."""

    def __init__(self, size: int, eps: float, dtype: Any):
        self.weight = nnx.Param(jnp.ones((size,), dtype), axes=("norm",))
        self.bias = nnx.Param(jnp.zeros((size,), dtype), axes=("norm",))
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + self.eps)
        return (centred * scale * self.weight[...] + self.bias[...]).astype(x.dtype)


NORMS: dict[str, type[RMSNorm] | type[RMSNormPlusOne] | type[LayerNorm]] = {
    "rms": RMSNorm,
    "rms_plus_one": RMSNormPlusOne,
    "layer": LayerNorm,
}


def make_norm(config: DecoderConfig, size: int) -> RMSNorm | RMSNormPlusOne | LayerNorm:
    """The norm of ``config`` over ``size`` features; it applies to the last axis."""
    return NORMS[config.norm](size, config.rms_norm_eps, jnp.dtype(config.dtype))
