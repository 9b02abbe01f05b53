"""Medusa's heads (Cai et al. 2024, arXiv 2401.10774, section 2.1.1)."""

from __future__ import annotations

import dataclasses
from typing import Any

from flax import nnx
import jax
import jax.numpy as jnp

from specjax.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class MedusaConfig:
    """Head i (from 0) guesses the token i + 2 places after the one its hidden state is of.

    With ``own_projection`` each head has a vocabulary projection of its own,
    as in the paper; without, all read the target's, and what is trained and
    shipped is the residual blocks alone.
    """

    num_heads: int  # H
    width: int  # D, the target's
    num_ids: int  # K, the ids that are scored
    blocks: int = 1  # residual blocks a head
    own_projection: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("num_heads", "width", "num_ids", "blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def module(self, rngs: nnx.Rngs) -> MedusaHeads:
        del rngs  # all zeros: an untrained head is the target's own
        return MedusaHeads(self)


class MedusaHeads(nnx.Module):
    """[T, D] -> [T, H, D]: x <- x + SiLU(x W + b), for each block of each head; W starts at zero."""

    def __init__(self, config: MedusaConfig):
        heads, width, dtype = config.num_heads, config.width, jnp.dtype(config.dtype)
        self.num_heads = heads
        # All first blocks read the same state, so theirs is one product.
        self.kernel = nnx.Param(jnp.zeros((width, heads * width), dtype), axes=("embed", "mlp"))
        self.bias = nnx.Param(jnp.zeros((heads * width,), dtype), axes=("mlp",))
        self.deeper = nnx.List([_Block(heads, width, dtype) for _ in range(config.blocks - 1)])
        if config.own_projection:
            head = jnp.zeros((heads, config.num_ids, width), dtype)
            self.lm_head = nnx.Param(head, axes=("norm", "vocab", "embed"))

    def __call__(self, x: Array) -> Array:
        first = (x @ self.kernel[...] + self.bias[...]).reshape(*x.shape[:-1], self.num_heads, -1)
        y = x[..., None, :] + jax.nn.silu(first)
        for block in self.deeper:
            y = block(y)
        return y


class _Block(nnx.Module):
    """The next residual block of every head, [T, H, D] -> [T, H, D]."""

    def __init__(self, heads: int, width: int, dtype: Any):
        self.kernel = nnx.Param(jnp.zeros((heads, width, width), dtype), axes=("norm", "embed", "mlp"))
        self.bias = nnx.Param(jnp.zeros((heads * width,), dtype), axes=("mlp",))

    def __call__(self, y: Array) -> Array:
        heads, width, _ = self.kernel.shape
        product = jnp.einsum("...hd,hde->...he", y, self.kernel[...])
        return y + jax.nn.silu(product + self.bias[...].reshape(heads, width))
