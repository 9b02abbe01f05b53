"""The functional model the core sees: ``init_cache`` and ``apply`` over a pytree of arrays."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

from flax import nnx
import jax
import jax.numpy as jnp

from specjax import cache as kv
from specjax.models.decoder import Decoder, DecoderConfig
from specjax.types import Array, ModelOutput, Params


class LanguageModel(Protocol):
    """A next-token law over a cache, for one sequence. Compared by value, jit-static."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context(self) -> int:
        """The most tokens a sequence may hold."""
        ...

    def init_cache(self, max_len: int) -> Any: ...

    def apply(
        self,
        params: Params,
        tokens: Array,
        cache: Any,
        positions: Array | None = None,
        mask: Array | None = None,
    ) -> ModelOutput:
        """Writes the T rows of ``tokens`` at ``cache.length``, then attends.

        ``mask`` [T, S] bool shows no slot past these rows: they hold leftovers, and may not be read.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerLM:
    """A :class:`Decoder` split into a static graph and a pytree of weights.

    Lossless rollback: the cache is rewound by its length alone.
    """

    graphdef: Any
    config: DecoderConfig
    taps: tuple[int | str, ...] = ()
    # Ids at and past this one are rows of padding that no token has: logits of -inf. None: there are none.
    num_ids: int | None = None

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context(self) -> int:
        return self.config.max_position_embeddings

    def init_cache(self, max_len: int) -> kv.KVCache:
        c = self.config
        return kv.init_cache(
            num_layers=c.num_hidden_layers,
            num_kv_heads=c.num_key_value_heads,
            head_dim=c.head_dim,
            max_len=max_len,
            dtype=c.dtype,
        )

    def apply(
        self,
        params: Params,
        tokens: Array,
        cache: kv.KVCache,
        positions: Array | None = None,
        mask: Array | None = None,
        embeddings: Array | None = None,
    ) -> ModelOutput:
        """One step over ``tokens`` [T].

        ``positions`` [T] default to cache.length, cache.length + 1, ...;
        ``mask`` [T, S] bool over cache slots defaults to causal; ``embeddings``
        [T, D] are read in place of the tokens' own.
        """
        if positions is None:
            positions = cache.length + jnp.arange(tokens.shape[0])
        if mask is None:
            mask = jnp.arange(cache.max_len)[None, :] <= (cache.length + jnp.arange(tokens.shape[0]))[:, None]
        module = nnx.merge(self.graphdef, params)
        logits, features, cache = module(tokens, cache, positions, mask, self.taps, embeddings)
        if self.num_ids is not None:
            logits = jnp.where(jnp.arange(self.vocab_size) < self.num_ids, logits, -jnp.inf)
        return ModelOutput(logits=logits, cache=cache, features=features)

    def logits(self, params: Params, states: Array) -> Array:
        """[T, V] float32 of what the head reads, the tap "final" [T, D]."""
        return nnx.merge(self.graphdef, params).logits(states)


def from_config(config: DecoderConfig, taps: tuple[int | str, ...] = ()) -> TransformerLM:
    """The model alone, without weights (no array is made)."""
    module = nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0)))
    return TransformerLM(graphdef=nnx.split(module)[0], config=config, taps=taps)


def init_params(config: DecoderConfig, seed: int) -> Params:
    """Random weights, a nested dict of float arrays."""

    def init(key):
        return nnx.to_pure_dict(nnx.split(Decoder(config, nnx.Rngs(params=key)))[1])

    return jax.jit(init)(jax.random.key(seed))


def logical_axes(model: TransformerLM) -> dict[str, Any]:
    """The logical axis names of every weight, in the structure of the params."""
    module = nnx.eval_shape(lambda: Decoder(model.config, nnx.Rngs(0)))
    flat = nnx.to_flat_state(nnx.split(module)[1])
    return nnx.to_pure_dict(nnx.from_flat_state([(path, leaf.replace(leaf.axes)) for path, leaf in flat]))
