"""The heads of Blockwise Parallel Decoding (Stern et al. 2018, arXiv 1811.03115, section 4)."""

from __future__ import annotations

import dataclasses

from flax import nnx
import jax
import jax.numpy as jnp

from specjax.models.linear import Linear
from specjax.types import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockwiseConfig:
    """k - 1 heads behind one feed-forward layer; all read the target's vocabulary projection.

    The paper's first head is p_1, which must be the target itself for its
    output to be the target's: it is the target's own, untouched, and no
    weights here are its. So ``num_heads`` is k - 1; head i (from 0) guesses the
    token i + 2 places after the one its hidden state is of.
    """

    num_heads: int  # H = k - 1
    width: int  # D, the target's
    num_ids: int  # K, the ids that are scored
    hidden_size: int  # of the layer between
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("num_heads", "width", "num_ids", "hidden_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def module(self, rngs: nnx.Rngs) -> BlockwiseHeads:
        return BlockwiseHeads(self, rngs)


class BlockwiseHeads(nnx.Module):
    """[T, D] -> [T, H, D]: x + the head's slice of ReLU(x W1 + b1) W2 + b2; W2 starts at zero."""

    def __init__(self, config: BlockwiseConfig, rngs: nnx.Rngs):
        c, dtype = config, jnp.dtype(config.dtype)
        self.num_heads = c.num_heads
        self.up_proj = Linear(c.width, c.hidden_size, ("embed", "mlp"), dtype, rngs, bias=True)
        n_out, axes = c.num_heads * c.width, ("mlp", "embed")
        self.down_proj = Linear(c.hidden_size, n_out, axes, dtype, rngs, bias=True)
        self.down_proj.kernel = nnx.Param(jnp.zeros((c.hidden_size, n_out), dtype), axes=axes)

    def __call__(self, x: Array) -> Array:
        slices = self.down_proj(jax.nn.relu(self.up_proj(x)))
        return x[..., None, :] + slices.reshape(*x.shape[:-1], self.num_heads, -1)
