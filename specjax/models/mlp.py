"""The feed-forward sublayer, with or without a gate."""

from __future__ import annotations

from collections.abc import Callable
import functools

from flax import nnx
import jax
import jax.numpy as jnp

from specjax.models.config import DecoderConfig
from specjax.models.linear import Linear
from specjax.types import Array

gelu_tanh = functools.partial(jax.nn.gelu, approximate=True)
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu_new": gelu_tanh,
}


class MLP(nnx.Module):
    """down(act(gate(x)) * up(x)) (Shazeer 2020, arXiv 2002.05202), or down(act(up(x))) without a gate."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        c, dtype = config, jnp.dtype(config.dtype)
        self.config = config
        if c.gated_mlp:
            self.gate_proj = Linear(
                c.hidden_size, c.intermediate_size, ("embed", "mlp"), dtype, rngs, c.mlp_bias
            )
        self.up_proj = Linear(c.hidden_size, c.intermediate_size, ("embed", "mlp"), dtype, rngs, c.mlp_bias)
        self.down_proj = Linear(c.intermediate_size, c.hidden_size, ("mlp", "embed"), dtype, rngs, c.mlp_bias)

    def __call__(self, x: Array) -> Array:
        act = ACTIVATIONS[self.config.hidden_act]
        if self.config.gated_mlp:
            return self.down_proj(act(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(act(self.up_proj(x)))
