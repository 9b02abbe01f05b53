"""A decoder-only transformer for one sequence, assembled from a :class:`DecoderConfig`.

By default Llama's: RMSNorm, RoPE, grouped-query attention, SwiGLU, tied or
untied embeddings (Touvron et al. 2023, arXiv 2302.13971).
"""

from __future__ import annotations

from flax import nnx
import jax
import jax.numpy as jnp

from specjax import cache as kv
from specjax.models import rope
from specjax.models.attend import soft_cap
from specjax.models.attention import Attention, within_window
from specjax.models.config import DecoderConfig as DecoderConfig
from specjax.models.mlp import MLP
from specjax.models.norms import make_norm
from specjax.types import Array


class Block(nnx.Module):
    """Pre-norm attention and MLP with residuals; with ``post_norms`` each result is normed too.

    Hugging Face names the second norm after its place in Llama, where it is
    the MLP's; with post-norms the MLP's is ``pre_feedforward_layernorm``.
    """

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        self.post_norms = config.post_norms
        self.input_layernorm = make_norm(config, config.hidden_size)
        self.self_attn = Attention(config, rngs)
        self.post_attention_layernorm = make_norm(config, config.hidden_size)
        self.mlp = MLP(config, rngs)
        if config.post_norms:
            self.pre_feedforward_layernorm = make_norm(config, config.hidden_size)
            self.post_feedforward_layernorm = make_norm(config, config.hidden_size)

    def __call__(self, x, rotation, mask, rows, start):
        mixed, rows = self.self_attn(self.input_layernorm(x), rotation, mask, rows, start)
        if self.post_norms:
            x = x + self.post_attention_layernorm(mixed)
            return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))), rows
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), rows


class Decoder(nnx.Module):
    """The whole network. Attribute names follow Hugging Face's tensor names for Llama and Gemma."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs):
        c, dtype = config, jnp.dtype(config.dtype)
        self.config = config
        table = jax.random.normal(rngs.params(), (c.vocab_size, c.hidden_size), dtype) * 0.02
        self.embed_tokens = nnx.Param(table, axes=("vocab", "embed"))
        if c.position_embedding == "learned":
            shape = (c.max_position_embeddings, c.hidden_size)
            table = jax.random.normal(rngs.params(), shape, dtype) * 0.02
            self.embed_positions = nnx.Param(table, axes=("norm", "embed"))
        self.layers = nnx.List([Block(config, rngs) for _ in range(c.num_hidden_layers)])
        self.norm = make_norm(c, c.hidden_size)
        if not c.tie_word_embeddings:
            head = (
                jax.random.normal(rngs.params(), (c.vocab_size, c.hidden_size), dtype) * c.hidden_size**-0.5
            )
            self.lm_head = nnx.Param(head, axes=("vocab", "embed"))

    def __call__(
        self,
        tokens: Array,
        cache: kv.KVCache,
        positions: Array,
        mask: Array,
        taps: tuple[int | str, ...] = (),
        embeddings: Array | None = None,
    ) -> tuple[Array, tuple[Array, ...], kv.KVCache]:
        """tokens [T], positions [T], mask [T, S] -> (logits [T, V] float32, taps [T, D] each, cache).

        Tap k is the residual stream after k layers (0 = embeddings); "final"
        is what the LM head reads. ``embeddings`` [T, D] are read in place of
        the tokens' own rows.
        """
        windows = self.config.windows
        view = lambda window: self._view(window, positions, mask, cache.length)
        views = {window: view(window) for window in dict.fromkeys(windows)}
        x = self._embed(self.embed_tokens[...][tokens] if embeddings is None else embeddings, positions)
        stream: dict[int | str, Array] = {0: x}
        keys, values = [], []
        for depth, layer in enumerate(self.layers):
            with jax.named_scope(f"layer_{depth}"):
                rows = (cache.keys[depth], cache.values[depth])
                x, rows = layer(x, *views[windows[depth]], rows, cache.length)
            keys.append(rows[0])
            values.append(rows[1])
            stream[depth + 1] = x
        stream["final"] = x = self.norm(x)
        length = cache.length + tokens.shape[0]
        new_cache = kv.KVCache(keys=tuple(keys), values=tuple(values), length=length)
        return self.logits(x), tuple(stream[tap] for tap in taps), new_cache

    def _embed(self, x: Array, positions: Array) -> Array:
        """Rows [T, D] of the table -> what the first layer reads."""
        if self.config.scale_embeddings:
            x = x * jnp.asarray(self.config.hidden_size**0.5, x.dtype)
        if self.config.position_embedding == "learned":
            # Padding and tokens past a row's limit may lie past the table; nobody reads their output.
            x = x + self.embed_positions[...].at[positions].get(mode="clip")
        return x

    def _view(
        self, window: int | None, positions: Array, mask: Array, start: Array
    ) -> tuple[tuple[Array, Array] | None, Array]:
        """How the layers of one window see positions: (cos and sin, or None without RoPE; mask [T, S])."""
        c = self.config
        if window is not None:
            mask = within_window(mask, positions, start, window)
        if c.position_embedding == "learned":
            return None, mask
        if window is not None and c.rope_local_base_freq is not None:
            return rope.rotations(positions, c.head_dim, c.rope_local_base_freq), mask
        return rope.rotations(positions, c.head_dim, c.rope_theta, c.rope_scaling), mask

    def logits(self, x: Array) -> Array:
        """ "final" [T, D] -> [T, V] float32."""
        table = (self.embed_tokens if self.config.tie_word_embeddings else self.lm_head)[...]
        logits = table_logits(table, x)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else soft_cap(logits, cap)


def table_logits(table: Array, x: Array) -> Array:
    """x [T, D] against the rows of ``table`` [V, D]: [T, V] float32."""
    # The table lies as lookups want it, so the product is [V, T]. Without the barrier XLA folds the
    # transpose into it, which costs 1 ms at V = 4,096.
    return jax.lax.optimization_barrier(jnp.matmul(table, x.T, preferred_element_type=jnp.float32)).T
