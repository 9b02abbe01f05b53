"""Causal self-attention over a cache, full or within a sliding window."""

from __future__ import annotations

from flax import nnx
import jax
import jax.numpy as jnp

from specjax import cache as kv
from specjax.models import rope
from specjax.models.attend import attend_written
from specjax.models.config import DecoderConfig
from specjax.models.linear import Linear
from specjax.models.norms import make_norm
from specjax.types import Array


def within_window(mask: Array, positions: Array, start: Array, window: int) -> Array:
    """``mask`` [T, S] without the slots that lie ``window`` positions or more behind a token.

    Committed slots hold the positions 0, 1, ...; the T slots from ``start`` hold ``positions``,
    which may repeat when they are branches of a tree.
    """
    held = jax.lax.dynamic_update_slice(jnp.arange(mask.shape[1], dtype=positions.dtype), positions, (start,))
    return mask & (positions[:, None] - held[None, :] < window)


class Attention(nnx.Module):
    """Grouped-query attention that writes its keys and values, then attends (arXiv 2305.13245)."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        c, dtype = config, jnp.dtype(config.dtype)
        self.config = config
        self.scale = (c.query_pre_attn_scalar or c.head_dim) ** -0.5
        q_size, kv_size = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        bias = c.attention_bias != "none"
        if c.fused_qkv:
            self.qkv_proj = Linear(c.hidden_size, 3 * q_size, ("embed", "heads"), dtype, rngs, bias)
        else:
            self.q_proj = Linear(c.hidden_size, q_size, ("embed", "heads"), dtype, rngs, bias)
            self.k_proj = Linear(c.hidden_size, kv_size, ("embed", "kv_heads"), dtype, rngs, bias)
            self.v_proj = Linear(c.hidden_size, kv_size, ("embed", "kv_heads"), dtype, rngs, bias)
        if c.qk_norm:
            self.q_norm, self.k_norm = make_norm(c, c.head_dim), make_norm(c, c.head_dim)
        bias = c.attention_bias == "all"
        self.o_proj = Linear(q_size, c.hidden_size, ("heads", "embed"), dtype, rngs, bias)

    def __call__(
        self,
        x: Array,
        rotation: tuple[Array, Array] | None,
        mask: Array,
        rows: tuple[Array, Array],
        start: Array,
    ) -> tuple[Array, tuple[Array, Array]]:
        """x [T, D], mask [T, S], rows the two arrays of a cache -> ([T, D], rows)."""
        c, length = self.config, x.shape[0]
        q, k, v = self._project(x)
        if rotation is not None:
            q, k = rope.rotate(q, *rotation).astype(x.dtype), rope.rotate(k, *rotation)
        keys, values = kv.write_keys(rows[0], k, start), kv.write_values(rows[1], v, start)

        q = q.reshape(length, c.num_key_value_heads, -1, c.head_dim)
        cap = c.attn_logit_softcapping
        mixed = attend_written(q, keys, values, mask, start + length, scale=self.scale, cap=cap)
        return self.o_proj(mixed.reshape(length, -1)), (keys, values)

    def _project(self, x: Array) -> tuple[Array, Array, Array]:
        """Queries [T, H, Dh], keys and values [T, Hkv, Dh], before any rotation."""
        c, length = self.config, x.shape[0]
        if c.fused_qkv:
            q, k, v = jnp.split(self.qkv_proj(x), 3, axis=-1)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q = q.reshape(length, c.num_attention_heads, c.head_dim)
        k, v = (y.reshape(length, c.num_key_value_heads, c.head_dim) for y in (k, v))
        return (self.q_norm(q), self.k_norm(k), v) if c.qk_norm else (q, k, v)
